"""One-round federated learning with closed-form classifier heads on a frozen backbone.

Importing this package imports neither torch nor flwr; the parts do, when they are used.
"""

import importlib
import sys
from typing import TYPE_CHECKING

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
_HOMES = {"load": "report.classifier", "replay": "server.mezo", "simulate": "simulation"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import one of the names that need torch on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, for completion in a notebook."""
    return sorted([*globals(), *_HOMES])
