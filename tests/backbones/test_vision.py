"""Image encoders in folders of transformers: features as the library itself gives them, and the folder's transform."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError

transformers = pytest.importorskip("transformers", reason="transformers is an optional extra")

SIZES: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
SIZES |= {"image_size": 32, "patch_size": 8}
PREPROCESSOR = {"do_resize": True, "size": {"height": 32, "width": 32}, "resample": 3, "do_rescale": True}
PREPROCESSOR |= {"rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.4, 0.3]}
PREPROCESSOR |= {"image_std": [0.2, 0.3, 0.25]}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def model_of(kind: str, **more: Any) -> Any:
    """Make a small model with random weights."""
    torch.manual_seed(2)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **more})
    model = getattr(transformers, f"{kind}Model")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def save(folder: Path, model: Any, **preprocessor: Any) -> Path:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **preprocessor}))
    return folder


def loaded(folder: Path | str, **options: Any) -> Backbone:
    return load_backbone(f"vision:{folder}", batch_size=2, device="cpu", **options)


def outputs(model: Any) -> Any:
    with torch.inference_mode():
        return model(pixel_values=IMAGES)


def same(backbone: Backbone, expected: Tensor) -> None:
    torch.testing.assert_close(backbone.forward_batch(IMAGES), expected, rtol=1e-4, atol=1e-5)


# Class of transformers, its options, tokens that are no patch, how the authors pool.
FAMILIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "ViT": ({}, 1, "cls"),
    "Dinov2": ({}, 1, "cls"),
    "Dinov2WithRegisters": ({"num_register_tokens": 4}, 5, "cls"),
    "DINOv3ViT": ({"num_register_tokens": 4}, 5, "cls"),
    "SiglipVision": ({}, 0, "pooled"),
    "CLIPVision": ({}, 1, "pooled"),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_the_librarys_own(kind: str, tmp_path: Path) -> None:
    more, prefix, usual = FAMILIES[kind]
    model = model_of(kind, **more)
    folder = save(tmp_path / "model", model)
    found = outputs(model)
    tokens = found.last_hidden_state
    expected = {"pooled": found.pooler_output, "cls": tokens[:, 0], "mean": tokens[:, prefix:].mean(1)}
    expected |= {"cls+mean": torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], dim=1)}
    same(loaded(folder), expected[usual])
    assert loaded(folder).fingerprint == loaded(folder, pooling=usual).fingerprint
    allowed = {"pooled": ["pooled"], "cls": ["cls", "mean", "cls+mean"]}[usual]
    allowed += ["mean"] if kind == "SiglipVision" else []
    for pooling, wanted in expected.items():
        if pooling in allowed:
            same(loaded(folder, pooling=pooling), wanted)
        else:
            with pytest.raises(ValueError, match=re.escape(f"got {pooling!r}")):
                loaded(folder, pooling=pooling)


def test_the_image_half_of_a_two_tower_model_is_taken(tmp_path: Path) -> None:
    """SigLIP 2 of one resolution is published as a SiglipModel: with the half for texts."""
    torch.manual_seed(0)
    text = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 64}
    config = transformers.SiglipConfig(text_config={**text, "vocab_size": 40}, vision_config=SIZES)
    whole = transformers.SiglipModel(config).eval()
    backbone = loaded(save(tmp_path / "siglip2", whole))
    same(backbone, outputs(whole.vision_model).pooler_output)
    assert not any("text" in key for key in backbone.module.state_dict())


def test_the_transform_is_the_folders(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", model_of("ViT"))
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    processor = transformers.ViTImageProcessor.from_pretrained(folder)
    expected = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]
    backbone = loaded(folder)
    torch.testing.assert_close(backbone.transform(Image.fromarray(pixels)), expected, rtol=1e-5, atol=1e-5)
    assert backbone.transform.spec["interpolation"] == "bicubic"
    cropped = save(tmp_path / "crop", model_of("ViT"), size={"shortest_edge": 40}, do_center_crop=True,
                   crop_size={"height": 32, "width": 32})  # fmt: skip
    assert loaded(cropped).input_size == 32
    for wrong in ({"rescale_factor": 1.0}, {"size": {"height": 32, "width": 16}}, {"image_mean": None}):
        with pytest.raises(WeightsError, match=r"preprocessor_config\.json"):
            loaded(save(tmp_path / "wrong", model_of("ViT"), **wrong))


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])  # one that resamples when asked to, one that always does
def test_other_sizes_are_multiples_of_a_patch(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", model_of(kind))
    assert loaded(folder, input_size=48).feature_dim == 48
    with pytest.raises(ValueError, match="cannot take images of 45 x 45 pixels: the side must be a multiple of 8"):
        loaded(folder, input_size=45)


def test_a_folder_runs_no_code_of_its_own(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", model_of("ViT"))
    trace = tmp_path / "trace"
    (folder / "modeling_evil.py").write_text(f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "modeling_evil.Evil"}, "_attn_implementation": "evil/kernels"}
    (folder / "config.json").write_text(json.dumps(config))
    assert loaded(folder).feature_dim == 48
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "evil"}))
    with pytest.raises(WeightsError, match=r"model_type must be one of vit, dinov2, .*got 'evil'"):
        loaded(folder)
    assert not trace.exists()


def test_mistakes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "model", model_of("ViT"))
    with pytest.raises(WeightsError, match="an image encoder is `vision:NAME`"):
        load_backbone(f"transformers:{folder}", device="cpu")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(WeightsError, match=r"folder model: preprocessor_config\.json cannot be read"):
        loaded(folder)
    (folder / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    with pytest.raises(WeightsError, match="a model of timm is `timm:hf-hub:NAME`"):
        loaded(folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs transformers: pip install 'fedstats-app\[vision\]'"):
        loaded(folder)
