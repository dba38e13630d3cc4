"""Any network of timm without its classifier, as ``timm:<name>``; needs the optional extra ``timm``.

A folder that describes one, as timm saves it for the hub (config.json, weights, README.md), is read here and not by
timm, which takes from config.json where weights are and how they are read.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedstats_app.backbones.architecture import (
    DESCRIPTIONS,
    UNKNOWN_LICENCE,
    Architecture,
    OfficialWeights,
    PooledTokens,
)
from fedstats_app.backbones.hub import hub_folder, licence_of_card, read_json
from fedstats_app.backbones.names import HUB, LOCAL, TIMM, Argument, arguments_text, checked_arguments
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError, read_state_file

# Layers that a model card passes as classes are given by name here (``mlp_layer=SwiGLUPacked``).
_LAYER_ARGUMENTS = ("mlp_layer",)
# All that is taken of a pretrained_cfg: what images should look like, and what is the classifier.
_CONFIG_KEYS = (
    *("input_size", "fixed_input_size", "interpolation", "crop_pct", "mean", "std"),
    *("pool_size", "first_conv", "classifier", "tag"),
)

logger = logging.getLogger("fedstats_app")


def timm_architecture(
    name: str, *, arguments: Mapping[str, Argument] | None = None, pooling: str = "auto"
) -> Architecture:
    """Describe a network of timm.

    Parameters
    ----------
    name : str
        timm's name, with or without the tag of its weights (``resnet18.a1_in1k``); ``hf-hub:ORG/NAME`` or
        ``local-dir:/PATH`` for what a config.json on the hub, or in a folder, describes.
    arguments : mapping, optional
        For the network's constructor, over those of the config.json.
    pooling : {"auto", "pooled", "cls", "mean", "cls+mean"}
        auto and pooled are what the network's configuration says.

    Raises
    ------
    ModuleNotFoundError
        If timm is not installed.
    ValueError
        If timm has no such network or it refuses the arguments, or it does not take square RGB images.
    WeightsError
        If the folder is missing, cannot be downloaded or does not describe a network of timm.
    """
    try:
        timm = importlib.import_module("timm")  # not an import statement: only part of timm is typed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"backbone timm:{name} needs timm: pip install 'fedstats-app[timm]'") from error
    given = _folder_of(timm, name)
    options = {**given.arguments, **(arguments or {})}
    config = {**given.config, "num_classes": 0}
    data = timm.data.resolve_data_config({}, pretrained_cfg=config)
    channels, height, width = data["input_size"]
    if isinstance(size := options.get("img_size"), int):
        height = width = size
    if channels != 3 or height != width:
        raise ValueError(f"timm:{name} takes images of shape {data['input_size']}; only square RGB ones are supported")
    shown = f"timm:{name}" + (f" with {arguments_text(arguments)}" if arguments else "")

    def made(**loading: Any) -> nn.Module:
        layers = {key: _layer(timm, key, value) for key, value in options.items()}
        network: nn.Module = timm.create_model(given.architecture, num_classes=0, **loading, **layers)
        return network

    def build() -> nn.Module:
        try:
            return made(pretrained=False, pretrained_cfg=config)
        except (TypeError, ValueError, AssertionError, RuntimeError, AttributeError) as error:
            raise ValueError(f"timm cannot make {shown} (backbone-arguments, config.json): {error}") from error

    def convert(state: Mapping[str, Tensor], source: str) -> Mapping[str, Tensor]:
        """Let timm itself read older layouts and resample position embeddings."""
        without_classifier = {**config, "classifier": None, "label_offset": None}
        overlay = {"state_dict": dict(state), "custom_load": False}
        try:
            return made(pretrained=True, pretrained_cfg=without_classifier, pretrained_cfg_overlay=overlay).state_dict()
        except (RuntimeError, KeyError, ValueError, AssertionError) as error:
            raise WeightsError(f"weights from {source} do not fit the backbone: {error}") from error

    heads = given.config.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    identity = f"{TIMM}{given.architecture}" + (f"({arguments_text(options)})" if options else "")
    return Architecture(
        build=build,
        transform=ImageTransform(height, tuple(data["mean"]), tuple(data["std"]), data["interpolation"]),
        official_weights=given.weights,
        classifier_prefixes=tuple(f"{head}." for head in heads),
        convert=convert,
        pool=lambda network: _pooled(network, shown, pooling),
        identity=identity if pooling in ("auto", "pooled") else f"{identity} {pooling}",
        licence=given.licence,
        other_sizes=f"input-size={height} is its own; networks that have it take backbone-arguments "
        "img_size={size} or dynamic_img_size=true",
    )


@dataclass(frozen=True)
class TimmFolder:
    """Description of a network of timm.

    Attributes
    ----------
    architecture : str
        timm's name, which is the network's wherever it was found.
    config : mapping
        What timm calls the pretrained configuration, without sources of weights.
    arguments : mapping
        For the constructor.
    weights : callable
        Returns a state dict, and in words where it came from.
    """

    architecture: str
    config: Mapping[str, Any]
    arguments: Mapping[str, Argument]
    licence: str
    weights: OfficialWeights


def read_timm_folder(folder: Path, source: str) -> TimmFolder:
    """Read the config.json of a folder that came from ``source``; weights are read when they are asked for.

    Raises
    ------
    WeightsError
        If there is no config.json, or it describes no network of timm or one with arguments that may not be given.
    """
    content = read_json(folder, "config.json", source)
    try:
        architecture = content["architecture"]
        given = content.get("pretrained_cfg", content)
        arguments = checked_arguments(content.get("model_args") or {})
        taken = {key: given[key] for key in _CONFIG_KEYS if key in given}
        config = {key: tuple(value) if isinstance(value, list) else value for key, value in taken.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = " (a model of transformers is `vision:NAME`)" if "model_type" in content else ""
        raise WeightsError(f"{source}: config.json describes no network of timm: {error!r}{hint}") from error
    if not isinstance(architecture, str):
        raise WeightsError(f"{source}: config.json must name an architecture of timm, got {architecture!r}")
    if lacking := [key for key in ("input_size", "mean", "std") if key not in config]:
        logger.warning("%s: config.json does not say %s: timm's defaults are taken", source, ", ".join(lacking))
    licence = licence_of_card(folder, str(given.get("license") or UNKNOWN_LICENCE))
    return TimmFolder(architecture, config, arguments, licence, lambda: (read_state_file(folder), source))


def _folder_of(timm: Any, name: str) -> TimmFolder:
    """Describe the network by timm itself, or by a folder."""
    if name.startswith(HUB):
        repository = name.removeprefix(HUB)
        found = read_timm_folder(hub_folder(repository), f"hub {repository}")
    elif name.startswith(LOCAL):
        folder = Path(name.removeprefix(LOCAL)).expanduser()
        found = read_timm_folder(folder, f"folder {folder.name}")
    else:
        return _registered(timm, name)
    if not timm.is_model(found.architecture):
        raise ValueError(f"{TIMM}{name}: config.json names {_unknown(timm, found.architecture)}")
    return found


def _registered(timm: Any, name: str) -> TimmFolder:
    """Describe one of timm's own networks."""
    try:
        config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    except RuntimeError:  # the tag is of no weights
        config = None
    if config is None:
        hint = f". For a model of the hub: {TIMM}{HUB}{name}" if "/" in name and ":" not in name else ""
        raise ValueError(f"{_unknown(timm, name)}{hint}")

    def weights() -> tuple[Mapping[str, Tensor], str]:
        if not config.hf_hub_id:
            raise WeightsError(f"timm has no weights for {name} on the hub; name a local file in backbone-weights")
        folder = hub_folder(config.hf_hub_id, required=())
        return read_state_file(folder), f"timm {config.architecture}.{config.tag}"

    return TimmFolder(name, config.to_dict(remove_source=True), {}, config.license or UNKNOWN_LICENCE, weights)


def _unknown(timm: Any, name: str) -> str:
    known = timm.list_models() + timm.list_pretrained()
    close = ", ".join(difflib.get_close_matches(name, known)) or "see timm.list_models()"
    return f"timm {timm.__version__} has no network {name!r}; close to it: {close}"


def _layer(timm: Any, key: str, value: Argument) -> object:
    """Return a layer's class for its name, where the network's constructor takes no name."""
    if key not in _LAYER_ARGUMENTS:
        return value.lower() if key == "act_layer" and isinstance(value, str) else value
    layers = {layer: getattr(timm.layers, layer, None) for layer in ("Mlp", "GluMlp", "SwiGLU", "SwiGLUPacked")}
    if value not in layers or layers[str(value)] is None:
        raise ValueError(f"{key} must be one of {', '.join(layers)}, got {value!r}")
    return layers[str(value)]


def _pooled(network: nn.Module, shown: str, pooling: str) -> tuple[nn.Module, str]:
    """Put the pooling that is asked for behind a network of timm, and say what the features are."""
    own, num_prefix = getattr(network, "global_pool", None), getattr(network, "num_prefix_tokens", None)
    if pooling in ("auto", "pooled"):
        if own == "":
            raise ValueError(
                f"{shown} gives tokens, and its configuration says not how to pool them: set backbone-pooling to cls, "
                "mean or cls+mean (Virchow's authors use cls+mean)"
            )
        if num_prefix is not None and own in ("token", "avg"):
            return network, DESCRIPTIONS["cls" if own == "token" else "mean"]
        return network, DESCRIPTIONS["pooled"] + (f" ({own})" if isinstance(own, str) else "")
    if num_prefix is None:
        raise ValueError(f"{shown} has no tokens, backbone-pooling must be auto, got {pooling!r}")
    if not isinstance(getattr(network, "fc_norm", None), nn.Identity | None):
        raise ValueError(
            f"{shown} normalises after its own pooling, backbone-pooling must be auto (or give global_pool=token in "
            f"backbone-arguments), got {pooling!r}"
        )
    return PooledTokens(network, "forward_features", num_prefix, pooling), DESCRIPTIONS[pooling]
