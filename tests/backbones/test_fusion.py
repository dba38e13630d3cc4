"""Batch normalisation folded into convolutions: the same features within a bound, only where it is safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BOUND, EngineError, chosen_engine
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.fusion import fused
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import load_dataset
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.option import ConfigError
from tests.backbones.conftest import random_images

IMAGES = random_images(7)


def lite0(engine: str, **options: Any) -> Backbone:
    return load_backbone("efficientnet_lite0", input_size=32, device="cpu", engine=engine, batch_size=4, **options)


def norms(network: nn.Module) -> int:
    return sum(isinstance(one, nn.BatchNorm2d) for one in network.modules())


def features(backbone: Backbone, images: Any = IMAGES) -> Tensor:
    return torch.cat(list(backbone.extract(images)))


@pytest.mark.parametrize("name", ["efficientnet_lite0", "mobilenet_v2", "resnet18"])
def test_every_batch_normalisation_goes_and_the_features_stay(name: str) -> None:
    torch.manual_seed(0)
    module = load_backbone(f"random:{name}", input_size=64, device="cpu").module
    for one in module.modules():
        if isinstance(one, nn.BatchNorm2d):  # that of a network that was never trained does nothing
            one.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            one.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    images = torch.randn(3, 3, 64, 64)
    before, state = norms(module), {key: value.clone() for key, value in module.state_dict().items()}
    made = fused(module, images)
    assert norms(made) == 0 and norms(module) == before > 10
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    torch.testing.assert_close(made(images), module(images), rtol=1e-4, atol=1e-5)


class Forked(nn.Module):
    """The convolution's output is used twice: beside its normalisation, too."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.times = times
        self.norm.running_mean.fill_(0.7)  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        made = self.first(images)
        if self.times == 2:  # one convolution in two places
            return (self.norm(made) + self.first(made)).mean((2, 3))
        return (self.norm(made) + made).mean((2, 3))


class Choosing(nn.Module):
    """What it does depends on the pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) if images.sum() > 0 else images.amax((2, 3))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Forked(1), "no batch normalisation right after a convolution"),
        (Forked(2), "no batch normalisation right after a convolution"),
        (Choosing(), "cannot be traced"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "no batch normalisation"),
    ],
)
def test_what_cannot_be_folded_is_left_and_said(module: nn.Module, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        fused(module.eval(), torch.randn(2, 3, 8, 8))


def test_features_are_the_same_bits_whatever_the_grouping_and_share_a_fingerprint() -> None:
    plain, quick = lite0("torch"), lite0("torch-fused", channels_last=True)
    assert quick.engine == "torch-fused" and quick.fingerprint == plain.fingerprint
    together = features(quick)
    assert torch.equal(together, torch.cat([features(quick, [image]) for image in IMAGES]))
    error = torch.linalg.vector_norm(together - features(plain), dim=1) / torch.linalg.vector_norm(together, dim=1)
    assert 0 < float(error.max()) <= BOUND
    assert quick.engine_in_words.endswith("batch normalisation folded into convolutions (as asked for)")
    assert norms(quick.module) > 0, "what is trained is the network as it was"


def test_the_cache_keeps_its_features_apart(tmp_path: Path) -> None:
    sample = load_dataset("builtin", "train")
    for engine in ("torch", "torch-fused"):
        list(FeatureReader(lite0(engine), tmp_path).blocks(sample, np.arange(3)))
    assert len(list((tmp_path / "features").iterdir())) == 2


def test_it_is_for_images_and_an_owner_may_choose_it() -> None:
    with pytest.raises(ConfigError, match="engine: torch-fused is for images, got backbone 'tiny-text'"):
        AppConfig.of(engine="torch-fused", backbone="tiny-text")
    with pytest.raises(ValueError, match="it is for images, the backbone takes texts"):
        chosen_engine("torch-fused", kind="text", device="cpu", autocast="none", num_weights=1)
    assert NodeConfig.from_node_config({"data-path": "/data", "engine": "torch-fused"}).engine == "torch-fused"
    with pytest.raises(EngineError, match=r"engine torch-fused: .*; use engine torch"):
        features(load_backbone("random:squeezenet1_1", input_size=64, device="cpu", engine="torch-fused"))
