"""The prefixes of names that stand for many image networks. No torch is imported here."""

from __future__ import annotations

from pathlib import Path

TIMM = "timm:"
# timm's own words for a model on the hub, and for one in a folder of this machine.
HUB, LOCAL = "hf-hub:", "local-dir:"
# Image encoders in the layout of transformers; `transformers:` is for texts.
VISION = "vision:"
RANDOM = "random:"
# Which of an image network's outputs are the features.
POOLINGS = ("auto", "pooled", "cls", "mean", "cls+mean")


def is_folder_model(name: str) -> bool:
    """Return whether the image network of this name is described by a folder, here or on a hub."""
    return name.startswith((f"{TIMM}{HUB}", f"{TIMM}{LOCAL}", VISION))


def in_folder(name: str, folder: Path) -> str:
    """Return the name of the same model in a folder of this machine."""
    path = folder.expanduser().absolute()
    return f"{VISION}{path}" if name.startswith(VISION) else f"{TIMM}{LOCAL}{path}"
