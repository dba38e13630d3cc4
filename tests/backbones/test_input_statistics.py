"""Mean and standard deviation of the pixels as options: part of the transform, and so of what nodes must agree on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones import load_backbone
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError

CIFAR_MEAN, CIFAR_STD = "0.4914,0.4822,0.4465", "0.2023,0.1994,0.201"


def test_pixels_are_normalised_by_them() -> None:
    config = AppConfig.of(backbone="random:tiny", input_mean=CIFAR_MEAN, input_std=0.25)
    backbone = loaded_backbone(config.backbone)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    expected = (pixels / 255 - np.array([0.4914, 0.4822, 0.4465])) / 0.25
    found = backbone.transform(Image.fromarray(pixels))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), expected, rtol=1e-6, atol=1e-6)
    assert AppConfig.from_run_config(config.to_run_config()).backbone == config.backbone


def test_every_one_of_them_changes_the_fingerprint_and_none_leaves_it() -> None:
    plain = load_backbone("random:tiny")
    assert loaded_backbone(BackboneOptions(backbone="random:tiny")).fingerprint == plain.fingerprint
    others = [
        load_backbone("random:tiny", mean=(0.5, 0.5, 0.4)),
        load_backbone("random:tiny", std=(0.5, 0.5, 0.4)),
        load_backbone("random:tiny", mean=(0.0, 0.0, 0.0)),
    ]
    assert len({one.fingerprint for one in (plain, *others)}) == 4
    assert load_backbone("random:tiny", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"input_mean": "0.5,0.5"}, "input-mean: must be a number in (-1, 2], or three, separated by commas, or empty"),
        ({"input_std": "0"}, "input-std: must be a number in (0, 10]"),
        ({"input_std": "nan"}, "input-std: must be"),
        ({"input_std": True}, "input-std: must be"),
        ({"input_mean": "0.5", "backbone": "tiny-text"}, "input-mean: is for images, got '0.5' with backbone"),
    ],
)
def test_what_is_no_mean_or_deviation_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(**settings)
    assert said in str(caught.value)
