import math
from collections.abc import Callable

import pytest
import torch

from fedstats_app.statistics import (
    FeatureMap,
    IdentityMap,
    RandomFourierFeatures,
    RandomProjection,
    feature_map_from_dict,
)
from fedstats_app.statistics.feature_maps import median_distance, random_fourier_features, random_projection
from tests.support.compare import relative_difference
from tests.support.golden import load, tensor

MAPS: list[FeatureMap] = [
    IdentityMap(),
    RandomFourierFeatures(64, 2.5, 7),
    RandomProjection(64, 7),
    RandomProjection(64, 7, "tanh"),
    RandomProjection(64, 7, "identity"),
]
# What seed 2025 gave when the generator was fixed.
PINNED_PROJECTION = [-0.4925918, -0.9150939, 0.0996974, 0.8127519]
PINNED_FOURIER = [-0.699351, 0.668876, -0.643898, -0.49624]

maps = pytest.mark.parametrize("feature_map", MAPS, ids=str)


def _features(n: int = 30, dim: int = 6) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(0))


def test_golden_random_fourier_features() -> None:
    golden = load("features")
    made = random_fourier_features(tensor(golden["X"]), tensor(golden["Omega"].T), tensor(golden["phase"]))
    assert relative_difference(made, golden["rff"]) <= 1e-12


def test_golden_random_projection() -> None:
    golden = load("features")
    made = random_projection(tensor(golden["X"]), tensor(golden["R"]))
    assert relative_difference(made, golden["relu_proj"]) <= 1e-12


@maps
def test_a_map_rebuilt_from_its_values_gives_the_same_features(feature_map: FeatureMap) -> None:
    features = _features()
    rebuilt = feature_map_from_dict(feature_map.to_dict())
    mapped = feature_map(features)
    assert rebuilt == feature_map
    assert torch.equal(rebuilt(features), mapped)
    assert mapped.shape == (30, feature_map.output_dim(6)) and mapped.dtype == torch.float32


def test_a_whole_number_as_width_survives_the_round_trip() -> None:
    assert feature_map_from_dict(RandomFourierFeatures(8, 1, 0).to_dict()) == RandomFourierFeatures(8, 1.0, 0)


@pytest.mark.parametrize("make", [lambda seed: RandomFourierFeatures(32, 1.0, seed), lambda s: RandomProjection(32, s)])
def test_another_seed_is_another_map(make: Callable[[int], FeatureMap]) -> None:
    assert not torch.equal(make(0)(_features()), make(1)(_features()))


@maps
def test_half_precision_features_are_mapped_in_float32(feature_map: FeatureMap) -> None:
    features = _features().to(torch.float16)
    assert torch.equal(feature_map(features).float(), feature_map(features.float()))


def test_the_generator_is_pinned() -> None:
    # All clients of a federation must draw the same numbers, whatever their numpy: these may never change.
    eye = torch.eye(3)
    projection = RandomProjection(4, seed=2025, activation="identity")(eye)
    fourier = RandomFourierFeatures(4, 1.0, seed=2025)(eye)
    assert projection.flatten()[:4].tolist() == pytest.approx(PINNED_PROJECTION, abs=2e-7)
    assert fourier.flatten()[:4].tolist() == pytest.approx(PINNED_FOURIER, abs=2e-6)


@pytest.mark.parametrize("width", [0.7, 3.0])
def test_random_fourier_features_approximate_the_gaussian_kernel(width: float) -> None:
    features = _features(20, 5)
    mapped = RandomFourierFeatures(20_000, width, 3)(features)
    kernel = torch.exp(-torch.cdist(features, features).square() / (2 * width**2))
    # Each entry is a mean of D values in [-2, 2] with variance at most 1: five standard errors.
    assert float((mapped @ mapped.T - kernel).abs().max()) < 5 / math.sqrt(20_000)


def test_the_projection_is_drawn_from_a_normal_of_variance_one_over_d() -> None:
    drawn = RandomProjection(50_000, 11, "identity")(torch.eye(4))
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(drawn.var()) == pytest.approx(1 / 4, rel=0.02)
    assert float((drawn * 2).pow(4).mean()) == pytest.approx(3.0, rel=0.05)  # kurtosis of a normal
    correlation = torch.corrcoef(drawn)
    assert float((correlation - torch.eye(4)).abs().max()) < 0.03


PROJECTION = {"kind": "random-projection", "num_features": 4, "seed": 0, "activation": "relu"}
FOURIER = {"kind": "random-fourier", "num_features": 4, "kernel_width": 1.0, "seed": 0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"kind must be one of .*identity.*, got None"),
        ({"kind": "eval"}, r"kind must be one of .*got 'eval'"),
        ({"kind": ["identity"]}, r"kind must be one of"),
        ({"kind": "identity", "seed": 1}, r"'identity' takes no parameters, got \{'seed': 1\}"),
        (dict(list(PROJECTION.items())[:3]), r"takes num_features: int.*activation: str, got"),
        ({**PROJECTION, "more": 1}, r"takes num_features"),
        ({**PROJECTION, "num_features": 4.0}, r"takes num_features: int"),
        ({**PROJECTION, "num_features": True}, r"takes num_features: int"),
        ({**PROJECTION, "activation": "exp"}, r"one of .*got 'exp'"),
        ({**PROJECTION, "num_features": 0}, r"\[1, 100000\], got 0"),
        ({**PROJECTION, "num_features": 10**9}, r"\[1, 100000\], got 1000000000"),
        ({**PROJECTION, "seed": -1}, r"seed must lie.*got -1"),
        ({**PROJECTION, "seed": 2**70}, r"seed must lie"),
        ({**FOURIER, "kernel_width": 0.0}, r"positive and finite, got 0.0"),
        ({**FOURIER, "kernel_width": math.nan}, r"finite, got nan"),
        ({**FOURIER, "kernel_width": math.inf}, r"finite, got inf"),
        ({**FOURIER, "seed": -5}, r"seed must lie.*got -5"),
        ({**FOURIER, "kernel_width": "1"}, r"kernel_width: float"),
    ],
)
def test_hostile_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        feature_map_from_dict(values)


def test_median_distance() -> None:
    assert median_distance(torch.tensor([[0.0], [1.0], [3.0]])) == 2.0
    with pytest.raises(ValueError, match="at least 2 features, got 1"):
        median_distance(torch.zeros(1, 3))
