"""Rows of class means: what a client sends, what a node's floor does to it, and how it travels."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.privacy import NodePolicy, statistics_above_floor
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec, merge_specs
from fedstats_app.statistics.class_mean_rows import plan_rows
from tests.support.compare import array, relative_difference
from tests.support.draws import Sample, samples
from tests.support.golden import Federation


def test_golden_rows_are_what_clients_send(federation: Federation) -> None:
    rows = federation.rows()
    assert array(rows.class_ids).tolist() == federation["mean_class"].tolist()
    assert array(rows.counts).tolist() == federation["mean_count"].tolist()
    assert relative_difference(rows.means, federation["means"]) <= 1e-12
    assert torch.bincount(rows.class_ids, minlength=rows.num_classes).tolist() == federation["K_c"].tolist()


def test_golden_rows_of_several_means(federation: Federation) -> None:
    rows = federation.subset_rows()
    assert array(rows.class_ids).tolist() == federation["mm_class"].tolist()
    assert array(rows.counts).tolist() == federation["mm_n"].tolist()
    assert torch.bincount(rows.class_ids, minlength=rows.num_classes).tolist() == federation["mm_Kc"].tolist()


@given(sample=samples(), means_per_class=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_several_means_are_disjoint_and_keep_the_sums(sample: Sample, means_per_class: int, seed: int) -> None:
    spec = StatisticsSpec(means_per_class=means_per_class)
    rows = spec.from_features(sample.features, sample.labels, sample.num_classes, seed=seed).rows
    plain = FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes, gram=False)
    scale = float(sample.features.abs().sum())
    assert torch.equal(rows.summed().class_counts, plain.class_counts)
    assert relative_difference(rows.summed().class_sums, plain.class_sums, scale=scale) <= 1e-12
    for c, n in enumerate(plain.class_counts.tolist()):
        sizes = rows.counts[rows.class_ids == c].tolist()
        groups = max(1, min(means_per_class, n // 2)) if n else 0
        assert len(sizes) == groups
        if groups:
            assert sizes[:-1] == [n // groups] * (groups - 1)
            assert n == 1 or min(sizes) >= 2


@pytest.mark.parametrize("means", [1, 3])
def test_rows_of_numpy_s_features_are_what_a_client_sends(means: int) -> None:
    features, labels = torch.rand(40, 5), torch.arange(40) % 3
    sent = StatisticsSpec(means_per_class=means).from_features(features, labels, 4).rows
    rows = ClassMeanRows.from_features(features.numpy(), labels.numpy(), 4, means_per_class=means)
    assert repr(rows) == f"<ClassMeanRows of 40 samples: {3 * means} rows, 4 classes, 5 features>"
    for name in ("class_ids", "counts", "class_sums"):
        assert torch.equal(getattr(rows, name), getattr(sent, name))


def test_a_class_is_split_at_random_by_the_generator_given() -> None:
    labels = torch.zeros(40, dtype=torch.int64)
    draws = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    plans = [plan_rows(labels, means_per_class=2, generator=draw)[1] for draw in draws]
    assert torch.equal(plans[0], plans[1]) and not torch.equal(plans[0], plans[2])
    assert not torch.equal(plans[0], plans[0].sort().values)  # not simply in the order of the samples
    assert torch.equal(plan_rows(labels, means_per_class=2)[1], plans[0])  # seed 0 is the default


def test_integer_counts_stay_integers_until_a_part_carries_noise() -> None:
    exact = ClassMeanRows(torch.tensor([0]), torch.tensor([2]), torch.ones(1, 3), 2)
    noisy = ClassMeanRows(torch.tensor([1]), torch.tensor([1.5], dtype=torch.float64), torch.ones(1, 3), 2)
    assert (exact + exact).counts.dtype == torch.int64 and (exact + noisy).counts.tolist() == [2.0, 1.5]
    with pytest.raises(ValueError, match="noisy"):
        (exact + noisy).summed()


ONE, MEANS = torch.tensor([0]), torch.ones(1, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassMeanRows(ONE, ONE + 1, num_classes=2), r"either means or class_sums"),
        (lambda: ClassMeanRows(ONE, ONE.float() + 1, MEANS, 2), r"counts must be \(1\) int64 or float64, got"),
        (lambda: ClassMeanRows(ONE, ONE + 1, None, 2, class_sums=MEANS.half()), r"class_sums must be \(any, any\)"),
        (lambda: ClassMeanRows(ONE.int(), ONE + 1, MEANS, 2), r"class_ids must be \(1\) int64, got \(1,\) torch.int32"),
        (lambda: ClassMeanRows(ONE - 1, ONE + 1, MEANS, 2), r"class_ids must lie in \[0, 2\), got -1"),
        (lambda: ClassMeanRows(ONE, ONE, MEANS, 2), r"counts must be positive, got 0"),
        (lambda: ClassMeanRows(ONE, ONE.double() + torch.nan, MEANS, 2), r"counts must be positive, got nan"),
        (lambda: plan_rows(ONE, means_per_class=0), r"means_per_class must be at least 1, got 0"),
    ],
)
def test_inconsistent_rows_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 40), st.integers(2, 17), st.integers(0, 9))
def test_a_class_has_a_mean_for_each_so_many_samples(labels: list[int], means: int, samples: int, floor: int) -> None:
    features = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spec = StatisticsSpec(means_per_class=means, samples_per_mean=samples)
    found = statistics_above_floor(
        NodePolicy(floor),
        spec,
        torch.tensor(labels, dtype=torch.int64),
        lambda positions: [(features[positions], torch.arange(len(positions)))],
        num_classes=4,
        feature_dim=3,
    )
    rows = found.statistics.rows
    numbers = np.bincount(labels, minlength=4)
    for label, number in enumerate(numbers.tolist()):
        own = rows.counts[rows.class_ids == label]
        if number < max(floor, 1):
            assert not len(own)
            continue
        assert len(own) == max(1, min(means, number // max(samples, floor)))
        assert int(own.sum()) == number and (len(own) == 1 or int(own.min()) >= max(samples, floor))


def test_it_travels_only_where_it_says_something() -> None:
    assert "samples-per-mean" not in StatisticsSpec(means_per_class=3).to_dict()
    spec = StatisticsSpec(means_per_class=3, samples_per_mean=8)
    assert StatisticsSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    for wrong in (1, 0, -3):
        with pytest.raises(ValueError, match="samples_per_mean must be at least 2"):
            StatisticsSpec.from_dict({**spec.to_dict(), "samples-per-mean": wrong})
    for wrong_type in (True, "8", 8.0, None):
        with pytest.raises(TypeError, match="samples-per-mean must be of type int"):
            StatisticsSpec.from_dict({**spec.to_dict(), "samples-per-mean": wrong_type})


def test_one_pass_serves_one_number_of_samples() -> None:
    few, many = (StatisticsSpec(means_per_class=3, samples_per_mean=number) for number in (2, 8))
    with pytest.raises(ValueError, match=r"one pass serves one number of samples per mean, got \[2, 8\]"):
        merge_specs([few, many])
    merged = merge_specs([StatisticsSpec(gram=True), many])
    assert merged == StatisticsSpec(gram=True, means_per_class=3, samples_per_mean=8)
    assert merged.covers(many) and merged.covers(StatisticsSpec(gram=True)) and not merged.covers(few)
