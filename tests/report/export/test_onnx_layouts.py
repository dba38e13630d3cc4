"""Networks of timm and transformers, small and random as ONNX files."""

import functools
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.report.export.onnx_file import compare, to_onnx
from tests.backbones import test_vision as of_transformers
from tests.report.export.test_onnx import classifier_of, images, resized_by_pillow

timm = pytest.importorskip("timm", reason="timm is an optional extra")
pytestmark = pytest.mark.extended


# An export takes seconds: a family of each library is enough daily, and one of them with the resizing in the file.
large = functools.partial(pytest.param, marks=pytest.mark.slow)


def agrees(backbone: Backbone) -> None:
    classifier = classifier_of(backbone)
    agreement = compare(classifier, to_onnx(classifier), images())
    assert (agreement.num_examples, agreement.num_same) == (6, 6) and agreement.max_difference < 1e-4


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_small_patch16_dinov3", "depth=1,embed_dim=48,num_heads=3,img_size=32"),
        large("vit_base_patch16_siglip_224", "depth=1,embed_dim=48,num_heads=3,img_size=32"),
        large("resnet10t", ""),
    ],
)
def test_families_of_timm(name: str, arguments: str, tmp_path: Path) -> None:
    given = {key: int(value) for key, value in (one.split("=") for one in arguments.split(",") if one)}
    torch.manual_seed(1)
    save_file(timm.create_model(name, num_classes=0, **given).state_dict(), tmp_path / "weights.safetensors")
    weights = str(tmp_path / "weights.safetensors")
    backbone = load_backbone(f"timm:{name}", arguments=arguments, weights=weights, device="cpu", input_size=32)
    agrees(resized_by_pillow(backbone))


@pytest.mark.parametrize("kind", ["CLIPVision", large("DINOv3ViT"), large("SiglipVision")])  # Dinov2 is below
def test_encoders_of_transformers(kind: str, tmp_path: Path) -> None:
    more = of_transformers.FAMILIES[kind][0]
    folder = of_transformers.save(tmp_path / "model", of_transformers.model_of(kind, **more))
    agrees(resized_by_pillow(of_transformers.loaded(folder)))


def test_another_pooling(tmp_path: Path) -> None:
    folder = of_transformers.save(tmp_path / "model", of_transformers.model_of("Dinov2"))
    agrees(of_transformers.loaded(folder, pooling="cls+mean"))
