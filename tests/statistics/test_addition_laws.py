"""One contract for every value that can be added: any split, any order, an identity, inputs left alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import ConfusionMatrix, MarginHistograms, margin_bins
from fedstats_app.statistics import (
    ClassMeanRows,
    ClientStatistics,
    FeatureStatistics,
    StatisticsAccumulator,
    StatisticsSpec,
)
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples


@dataclass(frozen=True)
class ValueType:
    """How a type is made from samples, merged, and looked at."""

    of: Callable[[Tensor, Tensor, int], Any]
    zero: Callable[[int, int], Any]
    # Everything the value holds, and what of it depends on the samples alone, not on their split.
    content: Callable[[Any], list[Tensor]]
    observed: Callable[[Any], list[Tensor]]
    merge: Callable[[list[Any]], Any] = sum


def _statistics_content(stats: FeatureStatistics) -> list[Tensor]:
    return [stats.class_counts, stats.class_sums] + ([] if stats.gram is None else [stats.gram])


def _rows_content(rows: ClassMeanRows) -> list[Tensor]:
    return [rows.class_ids, rows.counts, rows.class_sums]


def _client_content(client: ClientStatistics) -> list[Tensor]:
    assert client.gram is not None
    return [*_rows_content(client.rows), client.gram]


def _rows(features: Tensor, labels: Tensor, num_classes: int) -> ClassMeanRows:
    return StatisticsSpec().from_features(features, labels, num_classes).rows


def _client(features: Tensor, labels: Tensor, num_classes: int) -> ClientStatistics:
    accumulator = StatisticsAccumulator(labels, num_classes, features.shape[1], gram=True)
    accumulator.update(features)
    return accumulator.statistics()


def _fold(clients: list[ClientStatistics]) -> StatisticsSum:
    first = clients[0].rows
    total = StatisticsSum(first.num_classes, first.feature_dim, gram=True, keep_rows=True)
    for client in clients:
        total.add(client)
    return total


def _confusion(features: Tensor, labels: Tensor, num_classes: int) -> ConfusionMatrix:
    predictions = (features.sum(dim=1).abs() * 1000).frexp().exponent.to(torch.int64) % num_classes
    return ConfusionMatrix.from_predictions(labels, predictions, num_classes)


def _matrix(confusion: ConfusionMatrix) -> list[Tensor]:
    return [confusion.matrix]


def _margins(features: Tensor, labels: Tensor, num_classes: int) -> MarginHistograms:
    return MarginHistograms.zeros(num_classes).count_(margin_bins(features[:, :1] * torch.arange(num_classes)), labels)


def _histograms(margins: MarginHistograms) -> list[Tensor]:
    return [margins.positives, margins.negatives]


def _summed(value: Any) -> list[Tensor]:
    return _statistics_content(value.summed())


def _nobody(num_classes: int, dim: int) -> ClientStatistics:
    return _client(torch.zeros(0, dim), torch.zeros(0, dtype=torch.int64), num_classes)


WITH_GRAM = ValueType(
    FeatureStatistics.from_features, FeatureStatistics.zeros, _statistics_content, _statistics_content
)
ADDABLE = {
    "FeatureStatistics": WITH_GRAM,
    "FeatureStatistics without Gram": replace(
        WITH_GRAM, of=partial(WITH_GRAM.of, gram=False), zero=partial(WITH_GRAM.zero, gram=False)
    ),
    "ClassMeanRows": ValueType(_rows, ClassMeanRows.zeros, _rows_content, _summed),
    "ClientStatistics": ValueType(_client, _nobody, _client_content, _summed),
    "ConfusionMatrix": ValueType(
        _confusion, lambda num_classes, _: ConfusionMatrix.zeros(num_classes), _matrix, _matrix
    ),
    "MarginHistograms": ValueType(
        _margins, lambda num_classes, _: MarginHistograms.zeros(num_classes), _histograms, _histograms
    ),
}
# A fold has no `+` of its own: what it folds is a ClientStatistics.
MERGEABLE = ADDABLE | {"StatisticsSum": replace(ADDABLE["ClientStatistics"], merge=_fold)}
mergeable = pytest.mark.parametrize("kind", MERGEABLE.values(), ids=MERGEABLE)
addable = pytest.mark.parametrize("kind", ADDABLE.values(), ids=ADDABLE)


def _magnitudes(sample: Sample) -> list[float]:
    """Return what sums and Gram matrices add up to without cancelling."""
    size = sample.features.to(torch.float64).abs()
    return [float(size.sum()), float((size.T @ size).sum())]


def _assert_same_statistics(actual: list[Tensor], expected: list[Tensor], sample: Sample) -> None:
    sums, products = _magnitudes(sample)
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.dtype == torch.int64:
            assert torch.equal(a, e)
        else:
            assert relative_difference(a, e, scale=(sums if position == 1 else products)) <= 1e-12


@mergeable
@given(sample=samples(), data=st.data())
def test_any_split_and_order_give_the_whole_statistics(kind: ValueType, sample: Sample, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations([kind.of(*part, sample.num_classes) for part in sample.parts]))
    together = kind.merge([kind.of(sample.features, sample.labels, sample.num_classes)])
    _assert_same_statistics(kind.observed(kind.merge(shuffled)), kind.observed(together), sample)


@addable
@given(sample=samples())
def test_zero_is_an_identity_to_the_bit(kind: ValueType, sample: Sample) -> None:
    value = kind.of(sample.features, sample.labels, sample.num_classes)
    zero = kind.zero(sample.num_classes, sample.features.shape[1])
    for merged in (value + zero, zero + value):
        for actual, expected in zip(kind.content(merged), kind.content(value), strict=True):
            assert same_bits(actual, expected)


@mergeable
@given(sample=samples())
def test_merging_leaves_its_inputs_as_they_were(kind: ValueType, sample: Sample) -> None:
    parts = [kind.of(*part, sample.num_classes) for part in sample.parts]
    before = [[tensor.clone() for tensor in kind.content(part)] for part in parts]
    merged = kind.merge([*parts, *parts])
    for tensor in kind.observed(merged):
        tensor.add_(1)  # what was returned must not share memory with what was put in
    for part, tensors in zip(parts, before, strict=True):
        for actual, expected in zip(kind.content(part), tensors, strict=True):
            assert same_bits(actual, expected)


@mergeable
@given(sample=samples())
def test_a_client_without_samples_changes_nothing(kind: ValueType, sample: Sample) -> None:
    parts = [kind.of(*part, sample.num_classes) for part in sample.parts]
    nobody = kind.of(sample.features[:0], sample.labels[:0], sample.num_classes)
    for actual, expected in zip(
        kind.observed(kind.merge([nobody, *parts, nobody])), kind.observed(kind.merge(parts)), strict=True
    ):
        assert same_bits(actual, expected)


@mergeable
@given(sample=samples())
def test_the_same_parts_in_the_same_order_give_the_same_bits(kind: ValueType, sample: Sample) -> None:
    once, twice = (kind.merge([kind.of(*part, sample.num_classes) for part in sample.parts]) for _ in range(2))
    for actual, expected in zip(kind.observed(once), kind.observed(twice), strict=True):
        assert same_bits(actual, expected)


@addable
def test_a_sum_with_something_else_is_a_type_error(kind: ValueType) -> None:
    with pytest.raises(TypeError):
        kind.zero(2, 3) + 1


@addable
def test_values_of_other_sizes_do_not_broadcast(kind: ValueType) -> None:
    with pytest.raises(ValueError, match=r"must have the same .*got"):
        kind.zero(2, 3) + kind.zero(3, 3)
