"""What is released: one sample more moves each part by at most 1, and heads come out of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.secure.account import composed
from fedstats_app.statistics.noisy_words import deviations, unit
from research.noise.mechanism import class_sums, gaussian, matrix_of, release, second_moments

CLASSES = 3


def drawn(seed: int, number: int, dim: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(number, dim, generator=draw, dtype=torch.float64) * scale
    return features, torch.randint(CLASSES, (number,), generator=draw)


def recorded(features: Tensor, labels: Tensor, *, mean: Tensor | None = None) -> tuple[list[Tensor], list[float]]:
    """Record each part before its noise, and how much it would get; ``mean`` is the one that came out, if given."""
    values: list[Tensor] = []
    sizes: list[float] = []

    def noise(value: Tensor, deviation: float) -> Tensor:
        values.append(value)
        sizes.append(deviation)
        return value if mean is None or len(values) > 1 else mean

    release(features, labels, CLASSES, num_samples=20, mu=1.3, noise=noise)
    return values, sizes


@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.0, 1e-200, 1.0, 1e150]))
def test_one_sample_moves_each_part_by_at_most_1(seed: int, dim: int, scale: float) -> None:
    """Every sample of a small data set is taken away in turn, whatever noisy mean came out."""
    features, labels = drawn(seed, 6, dim)
    features[0] *= scale
    mean = torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 20
    whole, sizes = recorded(features, labels, mean=mean)
    for out in range(6):
        kept = torch.arange(6) != out
        for with_it, without in zip(whole, recorded(features[kept], labels[kept], mean=mean)[0], strict=True):
            assert float(torch.linalg.vector_norm(with_it - without)) <= 1 + 1e-12
    assert composed(1 / size for size in sizes) == pytest.approx(1.3, rel=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_second_moments_are_as_long_as_their_matrix(seed: int, dim: int) -> None:
    features, _ = drawn(seed, 5, dim)
    moments = second_moments(features)
    assert float(moments.norm()) == pytest.approx(float((features.T @ features).norm()), rel=1e-12)
    torch.testing.assert_close(matrix_of(moments, dim), features.T @ features)


def almost_exact(features: Tensor, labels: Tensor) -> NoisyStatistics:
    noise = gaussian(torch.Generator().manual_seed(0))
    return release(features, labels, CLASSES, num_samples=len(labels), mu=1e9, noise=noise)


def test_without_noise_to_speak_of_the_heads_are_nearest_mean_and_least_squares() -> None:
    features, labels = drawn(1, 60, 5)
    features = features + 2 * torch.eye(CLASSES, 5, dtype=torch.float64)[labels] + 1.0
    out = almost_exact(features, labels)
    turned = deviations(features, unit(features).mean(dim=0))
    sums = class_sums(turned, labels, CLASSES)
    torch.testing.assert_close(out.ncm().weight, unit(sums), rtol=1e-6, atol=1e-6)
    expected = unit(torch.linalg.solve(turned.T @ turned, sums.T).T)
    torch.testing.assert_close(out.ridge().weight, expected, rtol=1e-5, atol=1e-5)
