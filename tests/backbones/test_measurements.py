"""The bound of features' norms."""

import math

import pytest
import torch
from torch import nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.measurements import feature_norm
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data.builtin import load_builtin


@pytest.mark.parametrize("name", ["random:efficientnet_lite0", "random:wide"])
def test_means_of_a_relu6_are_bounded_by_the_architecture(name: str) -> None:
    norm = feature_norm(load_backbone(name, input_size=32 if "lite" in name else 0))

    assert norm.bound == 6.0 * math.sqrt(1280) and "above 6" in norm.source


@pytest.mark.parametrize("name", ["random:tiny", "random:tiny-text"])
def test_other_networks_are_probed(name: str) -> None:
    backbone = load_backbone(name)
    samples = ["a text of the probes' kind", "x " * 60] if backbone.kind == "text" else None
    images = [load_builtin("train").sample(index) for index in range(0, 8000, 400)] if samples is None else samples
    longest = max(float(block.norm(dim=1).max()) for block in backbone.extract(images))

    norm = feature_norm(backbone)

    assert longest < norm.bound < 40.0 * longest and "probes" in norm.source
    assert feature_norm(backbone) == norm


def test_features_of_length_one_are_known_to_be() -> None:
    assert feature_norm(load_backbone("random:wide", feature_power=0.5)).bound == 1.0

    class Encoder(nn.Module):
        normalise = True

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return nn.functional.normalize(images.flatten(1)[:, :5] + 3.0, dim=1)

    tiny = load_backbone("random:tiny")
    backbone = Backbone("unit", Encoder(), tiny.transform, weights_source="none", device="cpu")

    assert feature_norm(backbone).bound == 1.0
