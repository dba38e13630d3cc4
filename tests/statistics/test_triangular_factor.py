"""The triangular factor of a scatter: the same matrix, in fewer numbers, and nothing but the matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.base.threads import one_thread
from fedstats_app.statistics import StatisticsSpec, TriangularFactor
from fedstats_app.statistics.factors import full_rank, num_factor_numbers
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples

GRAM = StatisticsSpec(gram=True)


def relu(n: int, dim: int, seed: int = 0) -> Tensor:
    """Return features as behind a ReLU: some are zero in every sample, the first among them, and one is constant."""
    features = torch.relu(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3)
    features[:, ::7] = 0.0
    features[:, 7] = 0.1
    return features


def factor_of(features: Tensor, labels: Tensor | None = None) -> TriangularFactor:
    """Return what a client of few samples keeps, by default all of one class."""
    labels = torch.zeros(len(features), dtype=torch.int64) if labels is None else labels
    within = GRAM.from_features(features, labels, 5).within
    assert isinstance(within, TriangularFactor)
    return within


@given(samples(), st.sampled_from([torch.float32, torch.float64]))
def test_it_is_the_scatter_in_fewer_numbers_and_comes_back_from_them(sample: Sample, dtype: torch.dtype) -> None:
    dim = sample.features.shape[1]
    features, labels = sample.features[: dim - 1].to(torch.float64), sample.labels[: dim - 1]
    client = GRAM.from_features(features, labels, 5)
    factor = factor_of(features, labels)

    size = float((features.abs().T @ features.abs()).max()) if len(features) else 0.0
    scatter = features.T @ features - client.rows.products()
    assert relative_difference(factor.scatter(), scatter, scale=size) <= 1e-13
    assert relative_difference(client.gram, features.T @ features, scale=size) <= 1e-13
    assert same_bits(factor.scatter(), factor.scatter().T.contiguous())
    assert len(factor.trapezoid) <= full_rank(client.rows) and torch.equal(factor.trapezoid, factor.trapezoid.triu())

    packed = factor.packed().to(dtype)
    assert len(packed) == num_factor_numbers(len(factor.trapezoid), dim) < max(dim * (dim + 1) // 2, 1)
    assert same_bits(TriangularFactor.unpacked(packed, dim).trapezoid, factor.trapezoid.to(dtype).to(torch.float64))


@pytest.mark.parametrize("n", [0, 1, 5, 39])
def test_the_order_of_the_samples_does_not_show(n: int) -> None:
    features = relu(n, 40)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))

    factor = factor_of(features).trapezoid

    assert len(factor) == max(min(n - 1, 34), 0), "features that are the same in every sample take no row"
    for others in (features[order], features.flip(0)):
        assert relative_difference(factor_of(others).trapezoid, factor) <= 1e-10


def test_no_row_is_a_sample_though_the_first_feature_is_zero() -> None:
    """A QR of the features would send the first sample as it is."""
    features = relu(5, 40)
    rows = torch.nn.functional.normalize(factor_of(features).trapezoid)
    for samples_ in (features, features - features.mean(dim=0)):
        assert float((rows @ torch.nn.functional.normalize(samples_).T).abs().max()) < 0.999


def test_duplicates_take_no_more_rows() -> None:
    features = relu(6, 40)
    assert len(factor_of(torch.cat([features, features])).trapezoid) == 5
    assert len(factor_of(relu(1, 40).repeat(9, 1)).trapezoid) == 0


@given(samples())
def test_a_client_keeps_a_factor_exactly_where_it_has_fewer_samples_than_features(sample: Sample) -> None:
    client = GRAM.from_features(sample.features, sample.labels, sample.num_classes)
    assert isinstance(client.within, TriangularFactor) == (len(sample.labels) < sample.features.shape[1])
    assert client.has_gram and not StatisticsSpec().from_features(sample.features, sample.labels, 5).has_gram


@given(samples(kinds=("random", "duplicates", "constant", "low rank")))
def test_the_factor_of_a_matrix_is_as_much_larger_as_rounding(sample: Sample) -> None:
    gram = sample.features.double().T @ sample.features.double()
    rows = StatisticsSpec().from_features(sample.features, sample.labels, 5).rows
    scatter = gram - rows.products()
    factor = TriangularFactor.of_scatter(scatter, rows)
    assert relative_difference(factor.scatter(), scatter, scale=float(gram.trace())) <= 1e-8


def test_it_is_made_on_one_thread_and_the_others_come_back() -> None:
    torch.set_num_threads(3)
    with pytest.raises(ArithmeticError), one_thread():
        assert torch.get_num_threads() == 1
        raise ArithmeticError
    assert torch.get_num_threads() == 3
    on_three = factor_of(relu(150, 200)).trapezoid
    torch.set_num_threads(1)
    assert same_bits(on_three, factor_of(relu(150, 200)).trapezoid)


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
        TriangularFactor.unpacked(packed, 4)
