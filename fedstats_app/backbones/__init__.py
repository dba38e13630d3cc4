"""Frozen pre-trained networks, each with its own transform and fingerprint: images or texts in, features out.

It may import data; importing the room itself does not import torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstats_app.backbones.registry import load_backbone

__all__ = ["load_backbone"]


def __getattr__(name: str) -> object:
    """Import `load_backbone` on first use, because it needs torch."""
    if name == "load_backbone":
        from fedstats_app.backbones.registry import load_backbone

        return load_backbone
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
