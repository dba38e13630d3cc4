"""Image encoders in the layout of transformers, as ``vision:NAME``; they need the optional extra ``vision``.

Only networks of transformers itself are made, by the model_type of a folder's config.json: no code of the folder runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from fedstats_app.backbones.architecture import DESCRIPTIONS, Architecture, pool_tokens
from fedstats_app.backbones.hub import hub_folder, licence_of_card, read_json
from fedstats_app.backbones.names import VISION
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError, read_state_file


@dataclass(frozen=True)
class _Family:
    """A family of models, with its poolings: transformers has a class NAMEModel and one NAMEConfig.

    Attributes
    ----------
    own : str
        The pooling of its authors: what "auto" stands for.
    prefix : int
        Tokens before the patches, without registers.
    resamples : bool
        Whether position embeddings are resampled only when asked to.
    options : tuple of (str, object)
        For the model's constructor.
    """

    name: str
    own: str = "cls"
    poolings: tuple[str, ...] = ("cls", "mean", "cls+mean")
    prefix: int = 1
    resamples: bool = False
    options: tuple[tuple[str, Any], ...] = ()


_SIGLIP = _Family("SiglipVision", "pooled", ("pooled", "mean"), prefix=0, resamples=True)
_CLIP = _Family("CLIPVision", "pooled", ("pooled",), resamples=True)
# By model_type; a model of images and texts counts by its half for images.
_FAMILIES = {
    "vit": _Family("ViT", resamples=True, options=(("add_pooling_layer", False),)),
    "dinov2": _Family("Dinov2"),
    "dinov2_with_registers": _Family("Dinov2WithRegisters"),
    "dinov3_vit": _Family("DINOv3ViT"),
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
}
# What decides the features beside the weights' shapes.
_FORM = ("patch_size", "num_attention_heads", "hidden_act", "layer_norm_eps", "rope_theta")


def vision_architecture(name: str, *, pooling: str = "auto") -> Architecture:
    """Describe an image encoder of transformers, whose pooling is by default that of the authors of such models.

    Parameters
    ----------
    name : str
        The absolute path of a folder with config.json, preprocessor_config.json and weights; or ORG/NAME on the hub.
    pooling : {"auto", "pooled", "cls", "mean", "cls+mean"}
        Which of its outputs are the features.

    Raises
    ------
    ModuleNotFoundError
        If transformers is not installed.
    WeightsError
        If the folder is missing, cannot be downloaded, or describes no image encoder that is known here.
    ValueError
        If the model has no such pooling.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError(f"backbone {VISION}{name} needs transformers: pip install 'fedstats-app[vision]'")
    path = Path(name).expanduser()
    folder, source = (path, f"folder {path.name}") if path.is_absolute() else (hub_folder(name), f"hub {name}")
    described = read_json(folder, "config.json", source)
    family = _FAMILIES.get(str(described.get("model_type")))
    if family is None:
        hint = " (a model of timm is `timm:hf-hub:NAME`)" if "architecture" in described else ""
        raise WeightsError(
            f"{source}: model_type must be one of {', '.join(_FAMILIES)}, got {described.get('model_type')!r}{hint}"
        )
    wanted = family.own if pooling == "auto" else pooling
    if wanted not in family.poolings:
        allowed = ", ".join(("auto", *family.poolings))
        raise ValueError(f"backbone-pooling must be one of {allowed} for {VISION}{name}, got {pooling!r}")
    config = _config(family, described.get("vision_config", described), source)
    transform = _transform(read_json(folder, "preprocessor_config.json", source), source)
    form = {key: getattr(config, key) for key in _FORM if hasattr(config, key)}
    return Architecture(
        build=lambda: _network(family, config, None),
        transform=transform,
        official_weights=lambda: (read_state_file(folder), source),
        convert=lambda state, origin: _converted(family, config, state, origin),
        pool=lambda network: (_VisionEncoder(network, family, wanted), DESCRIPTIONS[wanted]),
        identity=f"{VISION}{family.name}Model {json.dumps(form, sort_keys=True)} {wanted}",
        licence=licence_of_card(folder),
    )


class _VisionEncoder(nn.Module):
    """A model of transformers and its pooling: (B, 3, H, W) -> (B, d), or (B, 2 d) for "cls+mean"."""

    def __init__(self, network: nn.Module, family: _Family, pooling: str) -> None:
        super().__init__()
        self.network = network
        self._num_prefix = family.prefix + getattr(network.config, "num_register_tokens", 0)
        self._pooling = pooling
        self._patch = int(getattr(network.config, "patch_size", 1))
        self._options = {"interpolate_pos_encoding": True} if family.resamples else {}

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images (B, 3, H, W)."""
        if images.shape[-1] % self._patch:
            raise ValueError(f"the side must be a multiple of {self._patch} pixels, a patch's side")
        outputs = self.network(pixel_values=images, **self._options)
        if self._pooling == "pooled":
            pooled: Tensor = outputs.pooler_output
            return pooled
        return pool_tokens(outputs.last_hidden_state, self._num_prefix, self._pooling)


def _config(family: _Family, described: Mapping[str, Any], source: str) -> Any:
    made = getattr(importlib.import_module("transformers"), f"{family.name}Config")
    # Not what it says of code, kernels or quantisation: these are choices of who loads it.
    plain = {key: value for key, value in described.items() if key not in ("auto_map", "quantization_config")}
    try:
        return made.from_dict({key: value for key, value in plain.items() if not key.startswith("_")})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise WeightsError(f"{source}: config.json does not describe a {family.name}Model: {error}") from error


def _network(family: _Family, config: Any, state: dict[str, Tensor] | None) -> nn.Module:
    factory = getattr(importlib.import_module("transformers"), f"{family.name}Model")
    config._attn_implementation = "sdpa"
    made: nn.Module
    if state is None:
        made = factory(config, **dict(family.options))
    else:
        made, info = factory.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=torch.float32,
            output_loading_info=True,
            attn_implementation="sdpa",
            trust_remote_code=False,
            **dict(family.options),
        )
        if lacking := sorted(info["missing_keys"]):
            raise WeightsError(f"its file has no weights for {', '.join(lacking[:4])}")
    return made.float().eval()


def _converted(family: _Family, config: Any, state: Mapping[str, Tensor], source: str) -> Mapping[str, Tensor]:
    """Let transformers itself read older layouts, and take the half for images out of a whole two-tower model."""
    try:
        return _network(family, config, dict(state)).state_dict()
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"weights from {source} do not fit the backbone: {error}") from error


def _transform(described: Mapping[str, Any], source: str) -> ImageTransform:
    """Return the transform of a preprocessor_config.json, stretched to a square as for every backbone."""
    size = described.get("crop_size" if described.get("do_center_crop") else "size")
    sides = set(size.values()) if isinstance(size, dict) else {size}
    if len(sides) != 1 or not all(isinstance(side, int) for side in sides):
        raise WeightsError(f"{source}: preprocessor_config.json must name one size of square images, got {size!r}")
    if described.get("do_rescale", True) and abs(described.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-6:
        raise WeightsError(f"{source}: preprocessor_config.json must scale pixels to 0..1, got {described!r}")
    normal = described.get("do_normalize", True)
    try:
        mean = tuple(map(float, described["image_mean"])) if normal else (0.0, 0.0, 0.0)
        std = tuple(map(float, described["image_std"])) if normal else (1.0, 1.0, 1.0)
        filter_name = Image.Resampling(described.get("resample", Image.Resampling.BILINEAR)).name.lower()
        return ImageTransform(sides.pop(), mean, std, filter_name)  # type: ignore[arg-type]  # lengths are checked there
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{source}: preprocessor_config.json is not understood: {error!r}") from error
