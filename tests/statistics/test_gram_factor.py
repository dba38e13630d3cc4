"""The factor of a Gram matrix of few samples: the same matrix, in fewer numbers, and nothing but the matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.base.threads import one_thread
from fedstats_app.statistics import GramFactor, StatisticsSpec
from fedstats_app.statistics.factors import num_factor_numbers
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples

GRAM = StatisticsSpec(gram=True)


def relu(n: int, dim: int, seed: int = 0) -> Tensor:
    """Return features as behind a ReLU: some are zero in every sample, the first among them."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.relu(torch.randn(n, dim, generator=generator, dtype=torch.float64) + 0.3)
    features[:, ::7] = 0.0
    return features


def few(sample: Sample) -> Tensor:
    """Return the first samples, fewer than features."""
    return sample.features[: sample.features.shape[1] - 1].to(torch.float64)


@given(samples())
def test_it_is_the_gram_matrix_in_fewer_numbers(sample: Sample) -> None:
    features = few(sample)
    n, dim = features.shape

    factor = GramFactor.of(features)

    size = features.abs()
    assert relative_difference(factor.gram(), features.T @ features, scale=float((size.T @ size).max())) <= 1e-13
    assert same_bits(factor.gram(), factor.gram().T.contiguous())
    assert len(factor.trapezoid) <= n and len(factor.packed()) < max(dim * (dim + 1) // 2, 1)
    assert torch.equal(factor.trapezoid, factor.trapezoid.triu())


@given(samples(), st.sampled_from([torch.float32, torch.float64]))
def test_it_comes_back_from_its_packed_numbers(sample: Sample, dtype: torch.dtype) -> None:
    factor = GramFactor.of(few(sample))
    packed = factor.packed().to(dtype)

    again = GramFactor.unpacked(packed, sample.features.shape[1])

    assert len(packed) == num_factor_numbers(len(factor.trapezoid), sample.features.shape[1])
    assert same_bits(again.trapezoid, factor.trapezoid.to(dtype).to(torch.float64))


@pytest.mark.parametrize("n", [0, 1, 5, 39])
def test_the_order_of_the_samples_does_not_show(n: int) -> None:
    features = relu(n, 40)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    signs = 1.0 - 2.0 * (torch.arange(n) % 2)

    factor = GramFactor.of(features).trapezoid

    assert len(factor) == min(n, 34), "features that are zero in every sample take no row"
    for others in (features[order], features * signs.unsqueeze(1), features.flip(0)):
        assert relative_difference(GramFactor.of(others).trapezoid, factor) <= 1e-10


def test_no_row_is_a_sample_though_the_first_feature_is_zero() -> None:
    """A QR of the features would send the first sample as it is."""
    features = relu(5, 40)
    rows = torch.nn.functional.normalize(GramFactor.of(features).trapezoid)

    assert float((rows @ torch.nn.functional.normalize(features).T).abs().max()) < 0.999


def test_duplicates_take_no_more_rows() -> None:
    features = relu(6, 40)
    assert len(GramFactor.of(torch.cat([features, features, 3 * features])).trapezoid) == 6


@given(samples())
def test_a_client_keeps_a_factor_exactly_where_it_has_fewer_samples_than_features(sample: Sample) -> None:
    client = GRAM.from_features(sample.features, sample.labels, sample.num_classes)
    assert (client.gram_factor is not None) == (len(sample.labels) < sample.features.shape[1])
    assert client.has_gram and not StatisticsSpec().from_features(sample.features, sample.labels, 5).has_gram


def test_a_sample_that_cannot_be_read_is_not_in_it() -> None:
    features, readable = relu(6, 40), torch.tensor([0, 2, 5])
    accumulator = GRAM.accumulator(torch.arange(6), 6, 40)
    accumulator.update(features[readable], readable)

    factor = accumulator.statistics(skipped=3).gram_factor

    assert factor is not None and len(factor.trapezoid) == 3
    assert relative_difference(factor.trapezoid, GramFactor.of(features[readable]).trapezoid) <= 1e-12


def test_it_is_made_on_one_thread_and_the_others_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(ArithmeticError), one_thread():
            assert torch.get_num_threads() == 1
            raise ArithmeticError
        assert torch.get_num_threads() == 3
        on_three = GramFactor.of(relu(150, 200)).trapezoid
        torch.set_num_threads(1)
        assert same_bits(on_three, GramFactor.of(relu(150, 200)).trapezoid)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (torch.ones(11), "a factor for 4 features has no 11 numbers"),
        (torch.ones(5), "has no 5 numbers"),
        (-torch.ones(4), "diagonal of a factor must not be negative, got -1.0"),
    ],
)
def test_numbers_that_are_no_factor_are_refused(packed: Tensor, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GramFactor.unpacked(packed, 4)
