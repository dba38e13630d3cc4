"""Sums of features on a grid have the same bits, whatever adds them up, up to the largest that are allowed."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.exact import fraction_bits, is_on_grid, on_grid

MAX_BITS = 12


@st.composite
def exact_samples(draw: st.DrawFn) -> tuple[StatisticsSpec, Tensor, Tensor, Tensor]:
    """Features up to the bound, labels, and which of a few clients has each; one may have none, or all."""
    number, dim = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    norm = 2.0 ** draw(st.integers(-4, 12))
    bits = fraction_bits(number, norm, squares=True)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    features = torch.randn(number, dim, generator=generator, dtype=torch.float64)
    features *= norm / features.norm(dim=1, keepdim=True).clamp(min=1e-9)
    labels = torch.randint(0, 3, (number,), generator=generator)
    owners = torch.randint(0, draw(st.integers(1, 4)), (number,), generator=generator)
    return StatisticsSpec(gram=True, fraction_bits=bits), features, labels, owners


def summed(spec: StatisticsSpec, parts: list[Tensor], features: Tensor, labels: Tensor) -> list[bytes]:
    total = StatisticsSum(3, features.shape[1], gram=True, keep_rows=False)
    for part in parts:
        total.add(spec.from_features(features[part], labels[part], 3))
    found = total.summed()
    assert found.gram is not None
    return [one.numpy().tobytes() for one in (found.class_counts, found.class_sums, found.gram)]


@given(exact_samples(), st.randoms(use_true_random=False))
def test_any_split_gives_the_same_bits(drawn: tuple[StatisticsSpec, Tensor, Tensor, Tensor], random: Random) -> None:
    spec, features, labels, owners = drawn
    parts = [(owners == one).nonzero().squeeze(1) for one in range(4)]
    random.shuffle(parts)
    whole = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))
    assert summed(spec, parts, features, labels) == summed(spec, [whole], features, labels)


def test_the_sum_is_that_of_integers_at_the_bound() -> None:
    number, norm = 1000, 3.0
    bits = fraction_bits(number * 10**6, norm, squares=True)
    assert bits < MAX_BITS
    # As if each sample stood for 10^6: the largest sum that is allowed, against Python's integers.
    feature = on_grid(torch.tensor([[norm * 0.6, norm * 0.8]]), bits)
    whole = [int(one) for one in (feature[0] * 2**bits).tolist()]
    total = torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(number):
        total += 10**6 * (feature.T @ feature)
    expected = [[number * 10**6 * a * b for b in whole] for a in whole]
    assert [[int(one) for one in row] for row in (total * 4.0**bits).tolist()] == expected


def test_rounding_moves_a_number_by_half_a_step_at_most() -> None:
    features = torch.linspace(-1, 1, 999).reshape(-1, 3)
    rounded = on_grid(features, 6)
    assert float((rounded - features).abs().max()) <= 2.0**-7
    assert is_on_grid(rounded, 6) and not is_on_grid(features.double(), 6)


@pytest.mark.parametrize(
    ("samples", "norm", "squares", "bits"),
    [(20_000, 1.0, True, 12), (8_000, 214.7, True, 11), (10**8, 214.7, False, 12), (5 * 10**6, 214.7, True, 7)],
)
def test_bits_of_fraction(samples: int, norm: float, squares: bool, bits: int) -> None:
    assert fraction_bits(samples, norm, squares=squares) == bits


@pytest.mark.parametrize(("norm", "reason"), [(float("inf"), "bounded length"), (1e5, "max-client-samples")])
def test_what_cannot_be_exact_is_refused(norm: float, reason: str) -> None:
    with pytest.raises(ValueError, match=f"exact-sums: .*{reason}"):
        fraction_bits(10**6, norm, squares=True)
