from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.statistics.class_mean_rows import plan_rows
from tests.support.compare import array, relative_difference, same_bits
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


def test_our_split_into_several_means_has_the_golden_sizes(federation: Federation) -> None:
    requested = int(federation["mm_requested"])
    parts = [
        ClassMeanRows.from_features(*federation.client(k), federation.num_classes, means_per_class=requested)
        for k in range(federation.num_clients)
    ]
    rows = ClassMeanRows.concatenate(parts)
    ours = sorted(zip(rows.class_ids.tolist(), rows.counts.tolist(), strict=True))
    golden = sorted(zip(federation["mm_class"].tolist(), federation["mm_n"].tolist(), strict=True))
    assert ours == golden


@given(sample=samples(), means_per_class=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_several_means_are_disjoint_of_two_samples_or_more_and_keep_the_sums(
    sample: Sample, means_per_class: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = ClassMeanRows.from_features(
        sample.features, sample.labels, sample.num_classes, means_per_class=means_per_class, generator=generator
    )
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


def test_a_class_is_split_at_random_by_the_generator_given() -> None:
    labels = torch.zeros(40, dtype=torch.int64)
    plans = [
        plan_rows(labels, means_per_class=2, generator=torch.Generator().manual_seed(seed))[1] for seed in (0, 0, 1)
    ]
    assert torch.equal(plans[0], plans[1])
    assert not torch.equal(plans[0], plans[2])
    assert not torch.equal(plans[0], plans[0].sort().values)  # not simply in the order of the samples
    assert torch.equal(plan_rows(labels, means_per_class=2)[1], plans[0])  # seed 0 is the default


@given(sample=samples())
def test_means_are_those_of_the_samples_of_a_class(sample: Sample) -> None:
    rows = ClassMeanRows.from_features(sample.features, sample.labels, sample.num_classes)
    assert rows.class_ids.tolist() == sorted(set(sample.labels.tolist()))
    assert rows.num_examples == len(sample.labels)
    for row, c in enumerate(rows.class_ids.tolist()):
        mine = sample.features[sample.labels == c].double()
        assert int(rows.counts[row]) == len(mine)
        assert relative_difference(rows.means[row], mine.mean(dim=0), scale=float(mine.abs().mean())) <= 1e-12


def test_rows_given_as_means_equal_rows_given_as_sums() -> None:
    ids, counts = torch.tensor([0, 2]), torch.tensor([3, 1])
    means = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    from_means = ClassMeanRows(ids, counts, means, 3)
    from_sums = ClassMeanRows(ids, counts, num_classes=3, class_sums=means * counts.unsqueeze(1))
    assert torch.equal(from_means.means, from_sums.means)
    assert from_means.class_sums.tolist() == [[3.0, 6.0], [0.5, -1.0]]


def test_class_sums_from_rows_equal_class_sums_from_features_to_the_bit() -> None:
    # FedNCM from rows must be FedNCM from sums, and 0.1 has no exact mean over 3.
    features, labels = torch.full((3, 2), 0.1), torch.zeros(3, dtype=torch.int64)
    rows = ClassMeanRows.from_features(features, labels, 1)
    assert same_bits(rows.summed().class_sums, FeatureStatistics.from_features(features, labels, 1).class_sums)


def test_integer_counts_stay_integers_until_a_part_carries_noise() -> None:
    exact = ClassMeanRows(torch.tensor([0]), torch.tensor([2]), torch.ones(1, 3), 2)
    noisy = ClassMeanRows(torch.tensor([1]), torch.tensor([1.5], dtype=torch.float64), torch.ones(1, 3), 2)
    assert (exact + exact).counts.dtype == torch.int64
    assert (exact + noisy).counts.tolist() == [2.0, 1.5]
    with pytest.raises(ValueError, match="noisy"):
        (exact + noisy).summed()


def test_two_phase_presence_counts_are_the_number_of_rows_per_class() -> None:
    golden = Federation("secagg")
    rows = golden.rows()
    assert torch.bincount(rows.class_ids, minlength=rows.num_classes).tolist() == golden["K_c"].tolist()
    assert rows.summed().class_counts.tolist() == golden["N_c"].tolist()


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
