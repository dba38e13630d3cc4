"""One-round federated learning with closed-form classifier heads on a frozen backbone.

Importing this package imports neither torch nor flwr; the parts do, when they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstats_app.classifier import load

# Flower reads the version from pyproject.toml and accepts no dynamic one, and an unpacked app bundle has no package
# metadata to ask. So it stands here and there, and a test keeps the two equal.
__version__ = "0.1.0"

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """Import `load` on first use, because it needs torch."""
    if name == "load":
        from fedstats_app.classifier import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
