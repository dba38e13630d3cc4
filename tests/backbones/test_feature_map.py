"""Maps behind a network: golden values, the generator that all sites share, and their part in a backbone."""

import math

import pytest
import torch
from torch import nn

from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.feature_map import MappedFeatures
from fedstats_app.backbones.measurements import feature_norm
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.base.option import ConfigError
from tests.support.compare import relative_difference
from tests.support.golden import load, tensor

# All sites must draw the same numbers, whatever their numpy: these may never change.
PINNED = {"relu:4": [1.0589, 0.0, 0.2661, 0.0], "fourier:4:2.0": [0.3202, 0.1588, -0.3498, -0.6204]}


def mapped(features: torch.Tensor, text: str) -> torch.Tensor:
    made: torch.Tensor = MappedFeatures(nn.Identity(), text, features.shape[1])(features)
    return made


@pytest.mark.parametrize(("name", "text"), [("rff", "fourier"), ("relu_proj", "relu")])
def test_golden_features(name: str, text: str) -> None:
    golden = load("features")
    module = MappedFeatures(nn.Identity(), "relu:1" if text == "relu" else "fourier:1:1", 1)
    module.matrix = tensor(golden["R" if text == "relu" else "Omega"])
    module.phase = tensor(golden["phase"])
    assert relative_difference(module(tensor(golden["X"])), golden[name]) <= 1e-12


@pytest.mark.parametrize("text", PINNED)
def test_the_generator_is_pinned(text: str) -> None:
    assert mapped(torch.eye(3), text)[0].tolist() == pytest.approx(PINNED[text], abs=6e-5)


@pytest.mark.parametrize("width", [0.7, 3.0])
def test_random_fourier_features_approximate_the_gaussian_kernel(width: float) -> None:
    features = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    made = mapped(features, f"fourier:20000:{width}")
    kernel = torch.exp(-torch.cdist(features, features).square() / (2 * width**2))
    # Each entry is a mean of D values in [-2, 2] with variance at most 1: five standard errors.
    assert float((made @ made.T - kernel).abs().max()) < 5 / math.sqrt(20_000)


def test_the_projection_is_drawn_from_a_normal_of_variance_one_over_d() -> None:
    drawn = MappedFeatures(nn.Identity(), "relu:30000", 4).matrix
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(drawn.var()) == pytest.approx(1 / 4, rel=0.02)
    assert float((drawn * 2).pow(4).mean()) == pytest.approx(3.0, rel=0.05)  # kurtosis of a normal


def test_a_backbone_has_the_map_and_a_fingerprint_of_its_own() -> None:
    plain = load_backbone("random:tiny")
    inputs = torch.stack([plain.transform.blank()] * plain.batch_size)
    fingerprints = {plain.fingerprint}
    for text, dim in (("unit", 32), ("relu:50", 50), ("relu:51", 51), ("fourier:50:2", 50), ("fourier:50:3", 50)):
        backbone = load_backbone("random:tiny", feature_map=text)
        assert backbone.feature_dim == dim and backbone.expands_features == (text != "unit")
        assert torch.allclose(backbone.forward_batch(inputs), mapped(plain.forward_batch(inputs), text), atol=1e-6)
        longest = float(backbone.forward_batch(torch.randn(inputs.shape)).norm(dim=1).max())
        assert longest <= feature_norm(backbone).bound * (1 + 1e-6)
        fingerprints.add(backbone.fingerprint)
    assert len(fingerprints) == 6


@pytest.mark.parametrize(
    "text",
    ["relu", "relu:0", "relu:32769", "relu:1e3", "tanh:5", "fourier:5", "fourier:5:0", "fourier:5:nan", "unit:3", ""],
)
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"feature.map: must be none, unit, relu:D or fourier:D:WIDTH"):
        BackboneOptions.of(feature_map=text)
