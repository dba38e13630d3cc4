"""The table of research/foundation-models.md: licence, parameters, features and size are what the libraries give."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedstats_app.backbones.architecture import UNKNOWN_LICENCE, Architecture
from fedstats_app.backbones.names import parse_arguments
from fedstats_app.backbones.timm_models import timm_architecture
from fedstats_app.backbones.vision import vision_architecture
from fedstats_app.settings.app_config import AppConfig
from tests.docs.markdown import DOCS, rows
from tests.support.hub_cache import HubCache

pytest.importorskip("timm", reason="timm is an optional extra")
transformers = pytest.importorskip("transformers", reason="transformers is an optional extra")

# What the hub's config.json says, as the models' pages publish it.
_HISTOLOGY = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "input_size": [3, 224, 224]}
_VIRCHOW = {"img_size": 224, "init_values": 1e-5, "num_classes": 0, "mlp_ratio": 5.3375, "global_pool": ""}
_GIGAPATH = {"img_size": 224, "patch_size": 16, "embed_dim": 1536, "depth": 40, "num_heads": 24, "mlp_ratio": 5.33334}
TIMM_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "MahmoodLab/UNI": ("vit_large_patch16_224", {}),
    "MahmoodLab/UNI2-h": ("vit_giant_patch14_224", {}),
    "paige-ai/Virchow": ("vit_huge_patch14_224", {**_VIRCHOW, "dynamic_img_size": True}),
    "paige-ai/Virchow2": ("vit_huge_patch14_224", {**_VIRCHOW, "reg_tokens": 4, "dynamic_img_size": True}),
    "bioptimus/H-optimus-0": ("vit_giant_patch14_reg4_dinov2", {"img_size": 224}),
    "prov-gigapath/prov-gigapath": ("vit_giant_patch14_dinov2", {**_GIGAPATH, "init_values": 1e-5}),
}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
VISION_CONFIGS: dict[str, Mapping[str, Any]] = {
    "owkin/phikon": {"model_type": "vit"},
    "owkin/phikon-v2": {"model_type": "dinov2", "image_size": 224, "patch_size": 16, **_LARGE},
    "facebook/dinov2-base": {"model_type": "dinov2", "image_size": 518, "patch_size": 14, "hidden_size": 768},
    "google/siglip2-base-patch16-224": {"model_type": "siglip", "vision_config": {"image_size": 224}},
}
_PREPROCESSOR = {"size": {"height": 224, "width": 224}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TABLE = {row[0]: row for row in rows(DOCS.parent / "research" / "foundation-models.md", "model")}


def architecture_of(name: str, arguments: str, pooling: str, cache: HubCache) -> Architecture:
    if name.startswith("vision:"):
        repository = name.removeprefix("vision:")
        folder = cache.folder(repository)
        (folder / "config.json").write_text(json.dumps(VISION_CONFIGS[repository]))
        (folder / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSOR))
        (folder / "model.safetensors").touch()
        return vision_architecture(repository, pooling=pooling)
    if name.startswith("timm:hf-hub:"):
        repository = name.removeprefix("timm:hf-hub:")
        architecture, more = TIMM_CONFIGS[repository]
        folder = cache.folder(repository)
        config = {"architecture": architecture, "model_args": more, "pretrained_cfg": _HISTOLOGY}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").touch()
    return timm_architecture(name.removeprefix("timm:"), arguments=parse_arguments(arguments), pooling=pooling)


def test_the_table_is_of_all_that_are_described_here() -> None:
    named = {row[1].strip("`") for row in TABLE.values()}
    hub = {f"timm:hf-hub:{name}" for name in TIMM_CONFIGS} | {f"vision:{name}" for name in VISION_CONFIGS}
    assert hub <= named


@pytest.mark.parametrize("model", TABLE)
def test_row(model: str, hub_cache: HubCache) -> None:
    _, name, arguments, pooling, licence, parameters, feature_dim, size = (cell.strip("`") for cell in TABLE[model])
    AppConfig.of(backbone=name, backbone_arguments=arguments, backbone_pooling=pooling)
    architecture = architecture_of(name, arguments, pooling, hub_cache)
    with torch.device("meta"):  # a billion parameters without their memory
        network = architecture.build()
        side = architecture.transform.input_size
        features = architecture.pool(network.eval())[0](torch.zeros(1, 3, side, side))
    assert feature_dim == str(features.shape[1]) and size == str(side)
    assert parameters == f"{sum(one.numel() for one in network.parameters()) / 1e6:.1f}"
    assert architecture.licence in (UNKNOWN_LICENCE, licence.removesuffix(", to be accepted"))
