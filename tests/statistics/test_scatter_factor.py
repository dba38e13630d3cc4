"""Factors of the scatter: exact at full rank, the same for any order, and with the energy they leave out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics import ClientStatistics, ScatterFactor, ScatterSpec, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.factors import full_rank
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples

COMPLETE = ScatterSpec(RankRule("full"))
SCATTER = StatisticsSpec(scatter=COMPLETE)
GRAM = StatisticsSpec(gram=True)


def literal(features: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values and the scatter about the class means, by numpy."""
    centred = np.asarray(features, dtype=np.float64).copy()
    for label in set(labels.tolist()):
        mine = labels.numpy() == label
        centred[mine] -= centred[mine].mean(axis=0)
    return np.linalg.svd(centred, compute_uv=False), centred.T @ centred


def factor_of(features: Tensor, labels: Tensor, means_per_class: int = 1) -> ScatterFactor:
    spec = StatisticsSpec(scatter=COMPLETE, means_per_class=means_per_class)
    scatter = spec.from_features(features, labels, 5).scatter
    assert scatter is not None
    return scatter


def drawn(n: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    features = torch.relu(torch.randn(n, dim, generator=generator, dtype=torch.float64) + 0.3)
    return features * torch.linspace(3, 0.1, dim), torch.randint(0, 4, (n,), generator=generator)


@given(samples(), st.integers(1, 3))
def test_a_complete_factor_is_the_scatter_about_the_rows_means(sample: Sample, means_per_class: int) -> None:
    client = StatisticsSpec(scatter=COMPLETE, means_per_class=means_per_class).from_features(
        sample.features, sample.labels, sample.num_classes
    )
    assert client.scatter is not None and not client.has_gram
    between = client.rows.means.T @ (client.rows.means * client.rows.counts.unsqueeze(1))
    features = sample.features.to(torch.float64)
    size = float((features.abs().T @ features.abs()).sum())

    scaled = client.scatter.scaled()

    assert relative_difference(scaled.T @ scaled, features.T @ features - between, scale=size) <= 1e-11
    assert len(client.scatter) <= full_rank(client.rows) and client.scatter.left_out == 0.0


@pytest.mark.parametrize(("n", "dim"), [(0, 9), (1, 9), (8, 9), (9, 9), (10, 9), (40, 9), (20, 64), (63, 64), (64, 64)])
def test_values_are_the_largest_singular_values(n: int, dim: int) -> None:
    features, labels = drawn(n, dim)
    values, _ = literal(features, labels)
    factor = factor_of(features, labels)

    assert len(factor) == min(n - len(set(labels.tolist())), dim)
    assert np.allclose(factor.values, values[: len(factor)], rtol=1e-8)
    eye = torch.eye(len(factor), dtype=torch.float64)
    assert torch.allclose(factor.directions @ factor.directions.T, eye, atol=1e-12)


@given(samples(), st.sampled_from(["sqrt(n)", "2 sqrt(n)", "0", "1", "3", "50"]))
def test_no_more_directions_are_made_than_the_rule_wants_and_they_are_the_same(sample: Sample, rule: str) -> None:
    spec = ScatterSpec(RankRule.parse(rule), "float32")
    client = StatisticsSpec(scatter=spec).from_features(sample.features, sample.labels, sample.num_classes)
    complete, found = factor_of(sample.features, sample.labels), client.scatter
    most, size = spec.rank.most(len(sample.labels)), float(sample.features.to(torch.float64).square().sum())
    assert found is not None and most is not None
    few = len(sample.labels) < sample.features.shape[1]

    assert len(found) == (min(most, len(complete)) if few else len(complete))
    sent = found.truncated(most, torch.float64).scaled()
    # The nearest matrix of its rank (Eckart and Young 1936), whichever of directions of the same length it has.
    distance = complete.scaled().T @ complete.scaled() - sent.T @ sent
    nearest = math.hypot(*complete.energies[most:])
    assert float(torch.linalg.matrix_norm(distance)) == pytest.approx(nearest, rel=1e-5, abs=1e-6 * size)
    left_out = complete.truncated(most, torch.float64).left_out
    assert found.truncated(most, torch.float64).left_out == pytest.approx(left_out, rel=1e-6, abs=1e-7 * size)


@given(samples(), st.integers(0, 8), st.sampled_from(["float16", "float32"]))
def test_what_is_left_out_keeps_the_trace(sample: Sample, rank: int, dtype: str) -> None:
    complete = factor_of(sample.features, sample.labels)
    rank = min(rank, len(complete))

    sent = complete.truncated(rank, getattr(torch, dtype))

    energy = sum(complete.energies)
    assert sent.values.dtype == torch.float32 and sent.directions.dtype == getattr(torch, dtype)
    assert sent.left_out >= 0.0 and (rank < len(complete) or sent.left_out == 0.0)
    tolerance = 1e-2 if dtype == "float16" and sent.left_out == 0.0 else 1e-6  # rounded up, it may exceed the whole
    assert float(sent.scaled().square().sum()) + sent.left_out == pytest.approx(energy, rel=tolerance, abs=1e-300)
    assert bool(torch.isfinite(sent.directions).all()) and bool(torch.isfinite(sent.values).all())


@given(samples(kinds=("random", "non-negative", "duplicates", "one constant feature", "low rank")))
def test_a_gram_matrix_or_its_factor_gives_the_same_factor(sample: Sample) -> None:
    formed = factor_of(sample.features, sample.labels)
    client = GRAM.from_features(sample.features, sample.labels, 5)
    dense = ClientStatistics(client.rows, client.gram)
    size = float(client.gram.diagonal().sum()) if client.gram is not None else 0.0

    # A direction that is rounding to the Gram matrix, and so not in its factor, may be the root of that to the scatter.
    for other, tolerance in ((dense, 1e-11), (client, 1e-8)):
        made = other.scatter_factor()
        assert made is not None
        products = [factor.scaled().T @ factor.scaled() for factor in (made, formed)]
        assert relative_difference(products[0], products[1], scale=max(size, 1e-300)) <= tolerance


@pytest.mark.parametrize("n", [150, 300])
def test_it_is_made_on_one_thread(n: int) -> None:
    features, labels = drawn(n, 200)
    made = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        made += [factor_of(features, labels), GRAM.from_features(features, labels, 5).scatter_factor()]
    for one, other in ((made[0], made[2]), (made[1], made[3])):
        assert one is not None and other is not None
        assert same_bits(one.values, other.values) and same_bits(one.directions, other.directions)


@given(samples(), st.permutations(range(6)))
def test_a_sum_of_factors_does_not_depend_on_the_order_of_the_clients(sample: Sample, order: list[int]) -> None:
    clients = [SCATTER.from_features(*part, sample.num_classes) for part in sample.parts]
    clients = [one.with_scatter(one.scatter.truncated(1, torch.float16)) for one in clients if one.scatter is not None]

    def total(chosen: list[ClientStatistics]) -> StatisticsSum:
        sum_ = StatisticsSum(sample.num_classes, sample.features.shape[1], gram=False, keep_rows=True, scatter=True)
        for client in chosen:
            sum_.add(client)
        return sum_

    one, other = total(clients).low_rank(), total([clients[i] for i in order if i < len(clients)]).low_rank()
    assert relative_difference(one.scatter, other.scatter) <= 1e-12
    assert one.left_out == pytest.approx(other.left_out, rel=1e-12) and torch.equal(one.scatter, one.scatter.T)


def test_sums_go_on_where_they_stopped_and_refuse_what_has_no_factor() -> None:
    features, labels = drawn(40, 9)
    client = SCATTER.from_features(features, labels, 5)
    total = StatisticsSum(5, 9, gram=False, keep_rows=True, scatter=True)
    total.add(client)
    low_rank = total.low_rank()
    again = StatisticsSum.resumed(
        total.summed(), total.rows(), num_rows=total.num_rows, num_pairs=4, scatter=low_rank.scatter, left_out=2.5
    )
    again.add(client)

    assert again.low_rank().left_out == 2.5 and total.low_rank().left_out == 0.0
    assert relative_difference(again.low_rank().scatter, 2 * low_rank.scatter) <= 1e-14
    with pytest.raises(ValueError, match="must have a factor of their scatter, got none"):
        again.add(StatisticsSpec().from_features(features, labels, 5))
    with pytest.raises(ValueError, match="made with scatter=False"):
        StatisticsSum(5, 9, gram=False, keep_rows=True).low_rank()
    for scatter, left_out in ((torch.zeros(3, 3, dtype=torch.float64), 0.0), (low_rank.scatter, -1.0)):
        with pytest.raises(ValueError, match=r"scatter must be \(9, 9\) float64|left out must be at least 0, got -1"):
            options = {"num_rows": 4, "num_pairs": 4, "scatter": scatter, "left_out": left_out}
            StatisticsSum.resumed(total.summed(), total.rows(), **options)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of float32, float16, int8, got 'int2'"):
        ScatterSpec(COMPLETE.rank, "int2")
