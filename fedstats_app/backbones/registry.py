"""The backbones by name, and loading one."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from fedstats_app.backbones.architecture import Architecture
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.efficientnet_lite import efficientnet_lite0
from fedstats_app.backbones.initialisation import random_initialisation
from fedstats_app.backbones.normalisation import group_norm
from fedstats_app.backbones.text import MINILM, TINY_TEXT, TextOptions, is_text_backbone
from fedstats_app.backbones.timm_models import timm_architecture
from fedstats_app.backbones.torchvision_models import TORCHVISION_NAMES, torchvision_architecture
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError, load_strictly, read_state_file

_TIMM = "timm:"
_RANDOM = "random:"


def _tiny() -> Architecture:
    """Two convolutions, d = 32: for tests that need features at once and need not recognise anything."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    return Architecture(build, ImageTransform(32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))


# Builders, not architectures: describing one of torchvision's imports torchvision.
_ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "efficientnet_lite0": efficientnet_lite0,
    **{name: functools.partial(torchvision_architecture, name) for name in TORCHVISION_NAMES},
    "tiny": _tiny,
}


def available_backbones() -> tuple[str, ...]:
    """List the names that :func:`load_backbone` takes, besides those that are a prefix and another name."""
    return (*(name for name in _ARCHITECTURES if name != "tiny"), MINILM, f"{_RANDOM}tiny", f"{_RANDOM}{TINY_TEXT}")


def load_backbone(
    name: str,
    *,
    weights: str = "",
    input_size: int = 0,
    batch_size: int = 32,
    device: str = "auto",
    autocast: str = "none",
    channels_last: bool = False,
    norm: Literal["batch", "group"] = "batch",
    text: TextOptions | None = None,
) -> Backbone:
    """Load a frozen backbone.

    Parameters
    ----------
    name : str
        One of :func:`available_backbones`; ``timm:<name>`` for any of timm's; ``sentence:<name>`` and
        ``transformers:<name>`` for text (:func:`fedstats_app.backbones.text.load_text_backbone`); or ``random:<name>``,
        which is the same as that name with ``weights="random"``.
    weights : str
        "" for the official ones; "random" for a random initialisation that depends on the name alone, the same in every
        process; else the path of a local file (.pth, .pt, .safetensors), of the network with or without its classifier,
        or for text of the folder that holds the model.
    input_size : int
        Side in pixels to which images are resized, or the most tokens of a text; 0 for the size that the network was
        trained for.
    batch_size, device, autocast, channels_last
        See :class:`Backbone`. They do not enter the fingerprint.
    norm : {"batch", "group"}
        "group" puts GroupNorm in place of every BatchNorm (:func:`group_norm`); the weights may be of either network.
    text : TextOptions, optional
        How the vectors of a text's tokens become its features; for text only.

    Returns
    -------
    Backbone
        Its name is ``name``, with ``random:`` before it where weights are random.

    Raises
    ------
    ValueError
        If the name is unknown or an option has a value that is not allowed.
    WeightsError
        If the weights are missing, cannot be downloaded, or do not fit.
    ModuleNotFoundError
        If a backbone needs timm or transformers, and they are not installed.
    """
    base_name = name.removeprefix(_RANDOM)
    if name.startswith(_RANDOM):
        if weights not in ("", "random"):
            raise ValueError(f"backbone {name!r} has random weights; weights must be '' or 'random', got {weights!r}")
        weights = "random"
    if input_size < 0:
        raise ValueError(f"input_size must be at least 1 pixel, or 0 for the backbone's own; got {input_size}")
    if norm not in ("batch", "group"):
        raise ValueError(f"norm must be batch or group, got {norm!r}")
    if is_text_backbone(base_name):
        from fedstats_app.backbones.text.loading import load_text_backbone

        return load_text_backbone(
            base_name,
            weights=weights,
            max_length=input_size,
            options=text or TextOptions(),
            batch_size=batch_size,
            device=device,
            autocast=autocast,
        )
    if text not in (None, TextOptions()):
        raise ValueError(f"backbone {name!r} takes images: it has no pooling or template of texts, got {text}")
    architecture = _find(base_name)
    with random_initialisation(base_name):
        module = architecture.build()
    state, weights_source = _weights(architecture, base_name, weights)
    has_statistics = state is None or any(key.endswith("running_mean") for key in state)
    if norm == "group" and not has_statistics:
        module = group_norm(module)
    if state is not None:
        load_strictly(module, state, architecture, source=weights_source)
    if norm == "group" and has_statistics:
        module = group_norm(module)
    transform = architecture.transform
    return Backbone(
        f"{_RANDOM}{base_name}" if weights == "random" else base_name,
        module,
        dataclasses.replace(transform, input_size=input_size) if input_size else transform,
        weights_source=weights_source,
        batch_size=batch_size,
        device=device,
        autocast=autocast,
        channels_last=channels_last,
    )


def _find(name: str) -> Architecture:
    if name.startswith(_TIMM):
        return timm_architecture(name.removeprefix(_TIMM))
    if name not in _ARCHITECTURES:
        close = difflib.get_close_matches(name, _ARCHITECTURES, n=1)
        hint = f", did you mean {close[0]!r}?" if close else "."
        known = ", ".join(available_backbones())
        prefixes = "timm:<name>, sentence:<name>, transformers:<name>, random:<name>"
        raise ValueError(f"unknown backbone {name!r}{hint} Known: {known}, {prefixes}")
    return _ARCHITECTURES[name]()


def _weights(architecture: Architecture, name: str, weights: str) -> tuple[Mapping[str, Tensor] | None, str]:
    """Return a state dict, None where the initial weights stay, and where it came from in words."""
    if weights == "random":
        return None, "random initialisation seeded by the name"
    if weights:
        return read_state_file(weights), f"file {Path(weights).name}"
    if architecture.official_weights is None:
        raise WeightsError(f"backbone {name!r} has no official weights: use '{_RANDOM}{name}', or name a file")
    return architecture.official_weights()
