"""Any network of timm without its classifier, as ``timm:<name>``; needs the optional extra ``timm``."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from fedstats_app.backbones.architecture import Architecture
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError, downloading, require_reachable

_HUB_FILENAME = "model.safetensors"


def timm_architecture(name: str) -> Architecture:
    """Describe a network by timm's name for it, with or without the tag of its weights (``resnet18.a1_in1k``).

    Raises
    ------
    ModuleNotFoundError
        If timm is not installed.
    ValueError
        If timm has no such network or weights, or the network does not take square RGB images.
    """
    try:
        timm = importlib.import_module("timm")  # not an import statement: only part of timm is typed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"backbone timm:{name} needs timm: pip install 'fedstats-app[timm]'") from error
    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is None:
        known = timm.list_models() + timm.list_pretrained()
        close = ", ".join(difflib.get_close_matches(name, known)) or "see timm.list_models()"
        raise ValueError(f"timm {timm.__version__} has no network {name!r}; close to it: {close}")
    data = timm.data.resolve_data_config(pretrained_cfg=config.to_dict())
    channels, height, width = data["input_size"]
    if channels != 3 or height != width:
        raise ValueError(f"timm:{name} takes images of shape {data['input_size']}; only square RGB ones are supported")

    def build() -> nn.Module:
        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
        return network

    def official_weights() -> tuple[Mapping[str, Tensor], str]:
        if not config.hf_hub_id:
            raise WeightsError(f"timm has no weights for {name} on the hub; name a local file in backbone-weights")
        overlay = {"file": str(_hub_file(config.hf_hub_id))}
        network = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0)
        return network.state_dict(), f"timm {config.architecture}.{config.tag}"

    heads = (config.classifier,) if isinstance(config.classifier, str) else tuple(config.classifier or ())
    return Architecture(
        build=build,
        transform=ImageTransform(height, tuple(data["mean"]), tuple(data["std"]), data["interpolation"]),
        official_weights=official_weights,
        classifier_prefixes=tuple(f"{head}." for head in heads),
    )


def _hub_file(hub_id: str) -> Path:
    """Find the network's safetensors file in the hub's cache on this machine, or download it.

    Not left to timm: it tries for minutes to reach a hub that is not there, and would unpickle other kinds of file.
    """
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    repository, _, revision = hub_id.partition("@")
    cached = try_to_load_from_cache(repository, _HUB_FILENAME, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    advice = f"put it into the hub's cache {constants.HF_HUB_CACHE}, or name a local copy of it in backbone-weights"
    with downloading(f"weights {_HUB_FILENAME} of {repository} are", advice):
        require_reachable(constants.ENDPOINT)
        return Path(hf_hub_download(repository, _HUB_FILENAME, revision=revision or None))
