"""The backbones by name, and loading one."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

from torch import Tensor, nn

from fedstats_app.backbones.architecture import Architecture, PoweredFeatures, group_norm, random_initialisation
from fedstats_app.backbones.backbone import Backbone, InputSizeError, Running
from fedstats_app.backbones.backbone_options import BACKBONES, BackboneOptions, per_channel
from fedstats_app.backbones.efficientnet_lite import efficientnet_lite0
from fedstats_app.backbones.joined import JoinedBackbone
from fedstats_app.backbones.names import (
    POOLINGS,
    RANDOM,
    TIMM,
    VISION,
    in_folder,
    is_folder_model,
    is_text_backbone,
    parse_arguments,
)
from fedstats_app.backbones.torchvision_models import TORCHVISION_NAMES, torchvision_architecture
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError, load_strictly, read_state_file

logger = logging.getLogger("fedstats_app")


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


def _wide() -> Architecture:
    """One layer of random features of 8 x 8 pixels, d = 1280: for measuring what is not the backbone, at its size."""
    return Architecture(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 1280), nn.ReLU6()),
        ImageTransform(8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        largest_feature=6.0,
    )


# Builders, not architectures: describing one of torchvision's imports torchvision.
_ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "efficientnet_lite0": efficientnet_lite0,
    **{name: functools.partial(torchvision_architecture, name) for name in TORCHVISION_NAMES},
    "tiny": _tiny,
    "wide": _wide,
}


def load_backbone(
    name: str,
    *,
    weights: str = "",
    input_size: int = 0,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    norm: Literal["batch", "group"] = "batch",
    template: str = "",
    arguments: str = "",
    pooling: str = "auto",
    feature_power: float = 1.0,
    **running: Unpack[Running],
) -> Backbone:
    """Load a frozen backbone; its name is ``name``, with ``random:`` before it where weights are random.

    Parameters
    ----------
    name : str
        One of `fedstats_app.backbones.backbone_options.BACKBONES`; ``timm:<name>`` for any of timm's
        (:func:`fedstats_app.backbones.timm_models.timm_architecture`); ``vision:<name>`` for image encoders of
        transformers (:func:`fedstats_app.backbones.vision.vision_architecture`); ``sentence:<name>`` and
        ``transformers:<name>`` for text (:func:`fedstats_app.backbones.text.load_text_backbone`); or ``random:<name>``,
        which is the same as that name with ``weights="random"``.
    weights : str
        "" for the official ones; "random" for a random initialisation that depends on the name alone, the same in every
        process; else the path of local files (:func:`fedstats_app.backbones.weights.read_state_file`), of the
        network with or without its classifier, or of the folder that holds the model.
    input_size : int
        Side in pixels to which images are resized, or the most tokens of a text; 0 for the size that the network was
        trained for.
    mean, std : tuple of float, optional
        Of the red, green and blue of images, for pixels scaled to 0..1, in place of those that the network was trained
        with. They enter the fingerprint.
    norm : {"batch", "group"}
        "group" puts GroupNorm in place of every BatchNorm (:func:`group_norm`); the weights may be of either network.
    template : str
        For texts only: a prompt around ``{text}``, or around ``{first}`` and ``{second}``, the first line of a text and
        the rest. Features are then the vector from which the language model would tell the word at ``{mask}`` (masked
        models), or the word that comes next where there is no ``{mask}`` (causal).
    arguments : str
        For the constructor of a network of timm, such as "img_size=224,init_values=1e-5".
    pooling : {"auto", "pooled", "cls", "mean", "cls+mean"}
        Which of the outputs are the features, for networks with tokens; "auto" is what the network's own configuration
        says. Of texts "mean" is that of all tokens' vectors, "cls" the first one.
    feature_power : float
        Above 0. Other than 1: features, which must not be negative, are raised to it and scaled to length one
        (:class:`fedstats_app.backbones.architecture.PoweredFeatures`). For images only.
    **running
        ``batch_size``, ``device``, ``autocast``, ``channels_last``, ``engine``, ``engine_cache``, ``feature_map``: see
        :class:`Backbone`. Of them a feature map and an engine in bfloat16 enter the fingerprint.

    Raises
    ------
    ValueError
        If the name is unknown or an option has a value that is not allowed.
    WeightsError
        If the weights are missing, cannot be downloaded, or do not fit.
    ModuleNotFoundError
        If a backbone needs timm or transformers, and they are not installed.
    """
    base_name = name.removeprefix(RANDOM)
    if name.startswith(RANDOM):
        if weights not in ("", "random"):
            raise ValueError(f"backbone {name!r} has random weights; weights must be '' or 'random', got {weights!r}")
        weights = "random"
    if is_text_backbone(base_name):
        power = None if feature_power == 1.0 else feature_power
        of_images = {"mean": mean, "std": std, "feature_power": power, "arguments": arguments}
        if given := {key: value for key, value in of_images.items() if value}:
            raise ValueError(f"backbone {name!r} takes texts: {', '.join(of_images)} are for images, got {given}")
        from fedstats_app.backbones.text.loading import load_text_backbone

        return load_text_backbone(
            base_name, weights=weights, max_length=input_size, pooling=pooling, template=template, **running
        )
    if template:
        raise ValueError(f"backbone {name!r} takes images: a template is for texts, got {template!r}")
    sought = base_name
    if weights and weights != "random" and is_folder_model(base_name) and Path(weights).expanduser().is_dir():
        sought, weights = in_folder(base_name, Path(weights)), ""
    architecture = _find(sought, arguments, pooling)
    with random_initialisation(architecture.identity or base_name):
        module = architecture.build()
    state, weights_source = _weights(architecture, base_name, weights)
    has_statistics = state is None or any(key.endswith("running_mean") for key in state)
    if norm == "group" and not has_statistics:
        module = group_norm(module)
    if state is not None:
        load_strictly(module, state, architecture, source=weights_source)
    if norm == "group" and has_statistics:
        module = group_norm(module)
    identity, transform = architecture.identity, architecture.transform
    module, features = architecture.pool(module)
    if feature_power != 1.0:
        module, raised = PoweredFeatures(module, feature_power), f"to the power {feature_power:g}"
        identity, features = f"{identity or base_name} {raised}", f"{features}, {raised} and of length one"
    if input_size:
        transform = dataclasses.replace(transform, input_size=input_size)
    transform = dataclasses.replace(transform, mean=mean or transform.mean, std=std or transform.std)
    try:
        return Backbone(
            f"{RANDOM}{base_name}" if weights == "random" else base_name,
            module,
            transform,
            weights_source=weights_source,
            identity=f"{RANDOM}{identity}" if identity and weights == "random" else identity,
            licence="none (random weights)" if weights == "random" else architecture.licence,
            largest_feature=architecture.largest_feature if feature_power == 1.0 else math.inf,
            features=features,
            **running,
        )
    except InputSizeError as error:
        advice = architecture.other_sizes.format(size=transform.input_size)
        raise InputSizeError(f"{error}; {advice}" if advice else str(error)) from error


def _find(name: str, arguments: str, pooling: str) -> Architecture:
    if pooling not in POOLINGS:
        raise ValueError(f"backbone-pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if name.startswith(TIMM):
        from fedstats_app.backbones.timm_models import timm_architecture

        return timm_architecture(name.removeprefix(TIMM), arguments=parse_arguments(arguments), pooling=pooling)
    if arguments:
        raise ValueError(f"backbone-arguments are for {TIMM}NAME, got {arguments!r} with backbone {name!r}")
    if name.startswith(VISION):
        from fedstats_app.backbones.vision import vision_architecture

        return vision_architecture(name.removeprefix(VISION), pooling=pooling)
    if pooling != "auto":
        raise ValueError(f"backbone-pooling is for {TIMM}NAME and {VISION}NAME, got {pooling!r} with backbone {name!r}")
    if name not in _ARCHITECTURES:
        prefixes = "timm:<name>, vision:<name>, sentence:<name>, transformers:<name>, random:<name>"
        raise ValueError(f"unknown backbone {name!r}. Known: {', '.join(BACKBONES)}, {prefixes}")
    return _ARCHITECTURES[name]()


def _weights(architecture: Architecture, name: str, weights: str) -> tuple[Mapping[str, Tensor] | None, str]:
    """Return a state dict, None where the initial weights stay, and where it came from in words."""
    if weights == "random":
        return None, "random initialisation seeded by the name"
    if weights:
        # A tuned network whose features are raised to a power is saved with that layer round it.
        state = {key.removeprefix("powered."): tensor for key, tensor in read_state_file(weights).items()}
        return state, f"file {Path(weights).name}"
    if architecture.official_weights is None:
        raise WeightsError(f"backbone {name!r} has no official weights: use '{RANDOM}{name}', or name a file")
    return architecture.official_weights()


@functools.lru_cache(maxsize=1)
def loaded_backbone(options: BackboneOptions, engine_cache: Path | None = None) -> Backbone:
    """Load a backbone as its options say; those of a run are :meth:`fedstats_app.settings.AppConfig.backbone_for`."""
    return load_networks(options.networks, options.feature_map, engine_cache)


def load_networks(networks: Sequence[BackboneOptions], feature_map: str, engine_cache: Path | None = None) -> Backbone:
    """Load one network, or several whose features are joined, with a map behind them; errors of :func:`load_backbone`.

    Parameters
    ----------
    networks : sequence of BackboneOptions
        Of each network alone.
    feature_map : str
        Behind all of them.
    engine_cache : Path, optional
        As of :class:`Backbone`.
    """
    started = time.perf_counter()
    loaded = [
        load_backbone(
            options.backbone,
            weights=options.backbone_weights,
            input_size=options.input_size,
            mean=per_channel(options.input_mean),
            std=per_channel(options.input_std),
            batch_size=options.batch_size,
            device=options.device,
            autocast=options.autocast,
            channels_last=True,  # faster convolutions on most machines
            norm=options.norm,
            template=options.text_template,
            arguments=options.backbone_arguments,
            pooling=options.backbone_pooling,
            feature_power=options.power,
            feature_map=feature_map if len(networks) == 1 else "none",
            engine=options.engine,
            engine_cache=engine_cache,
        )
        for options in networks
    ]
    backbone = loaded[0] if len(loaded) == 1 else JoinedBackbone(loaded, feature_map)
    logger.info("loaded %r in %.1f s", backbone, time.perf_counter() - started)
    return backbone
