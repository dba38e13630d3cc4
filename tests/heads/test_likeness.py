"""Distances from the training data, by the scatter of the statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads.likeness import Likeness, limit
from fedstats_app.statistics import FeatureStatistics


def draw(n: int, seed: int, d: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator) @ torch.randn(d, d, generator=torch.Generator().manual_seed(1)) + 3.0


@given(st.integers(0, 99), st.integers(2, 5))
def test_distances_are_those_of_all_samples_in_one_place(seed: int, sites: int) -> None:
    features, labels = draw(60, seed), torch.arange(60) % 3
    parts = [FeatureStatistics.from_features(features[k::sites], labels[k::sites], 3) for k in range(sites)]
    new = draw(5, seed + 1)

    found = Likeness.of(sum(parts)).distances(new)

    whole = features.double().numpy()
    covariance = np.cov(whole.T, bias=True)
    inverse = np.linalg.inv(covariance + 0.01 * np.trace(covariance) / 6 * np.eye(6))
    centred = new.double().numpy() - whole.mean(axis=0)
    np.testing.assert_allclose(found, np.einsum("nd,de,ne->n", centred, inverse, centred), rtol=1e-6)


def test_a_hundredth_of_new_samples_is_beyond_the_limit_and_others_are() -> None:
    features = draw(5000, 0)
    likeness = Likeness.of(FeatureStatistics.from_features(features, torch.arange(5000) % 2, 2))
    farthest = limit(likeness.distances(draw(2000, 1)))
    assert farthest is not None
    assert 0.005 < float((likeness.distances(draw(20_000, 2)) > farthest).double().mean()) < 0.016
    assert bool((likeness.distances(torch.full((3, 6), -30.0)) > farthest).all())


@pytest.mark.parametrize(("n", "place"), [(98, None), (99, 98), (199, 197), (2000, 1980)])
def test_the_limit_is_an_order_statistic(n: int, place: int | None) -> None:
    assert limit(torch.arange(n).flip(0).double()) == place


def test_few_samples_and_more_dimensions() -> None:
    features = draw(3, 0, d=12)
    likeness = Likeness.of(FeatureStatistics.from_features(features, torch.tensor([0, 0, 1]), 2))
    assert bool(likeness.distances(features).isfinite().all())
    with pytest.raises(ValueError, match="needs statistics with a Gram matrix"):
        Likeness.of(FeatureStatistics.from_features(features, torch.tensor([0, 0, 1]), 2, gram=False))
    with pytest.raises(ValueError, match="got none"):
        Likeness.of(FeatureStatistics.zeros(2, 3, gram=True))
