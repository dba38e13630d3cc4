"""One-round federated learning with closed-form classifier heads on a frozen backbone.

Importing this package imports neither torch nor flwr; the parts do, when they are used.
"""

import sys
from typing import TYPE_CHECKING

from fedstats_app.base.lazy import lazy

if TYPE_CHECKING:
    from fedstats_app.report.classifier import load
    from fedstats_app.server.mezo import replay
    from fedstats_app.simulation import simulate

# Importing OpenVINO would report to an analytics server through this package. Without it, OpenVINO sends nothing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as Python spells "not installed"

# Flower reads the version from pyproject.toml and accepts no dynamic one, and an unpacked app bundle has no package
# metadata to ask. So it stands here and there, and a test keeps the two equal.
__version__ = "0.1.0"

__all__ = ["__version__", "load", "replay", "simulate"]

# Imported on first use, because they need torch.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__, {"load": "report.classifier", "replay": "server.mezo", "simulate": "simulation"}
    )
