from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given

from fedstats_app.statistics import FeatureStatistics
from tests.support.compare import array, relative_difference
from tests.support.draws import Sample, samples
from tests.support.golden import Federation


def test_golden_counts_sums_means_and_gram(federation: Federation) -> None:
    stats = federation.statistics()
    assert array(stats.class_counts).tolist() == federation["N_c"].tolist()
    assert relative_difference(stats.class_sums, federation["class_sum"]) <= 1e-12
    assert relative_difference(stats.class_sums, federation["cgs_A"]) <= 1e-12
    assert relative_difference(stats.class_means, federation["mu_c"]) <= 1e-12
    assert relative_difference(stats.class_means, federation["cgs_mu"]) <= 1e-12
    assert stats.gram is not None and relative_difference(stats.gram, federation["fed3r_G"]) <= 1e-12
    assert relative_difference(stats.gram, federation["cgs_B"]) <= 1e-12


@given(sample=samples())
def test_statistics_are_those_of_plain_numpy(sample: Sample) -> None:
    stats = FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes)
    features, labels = sample.features.numpy().astype(np.float64), sample.labels.numpy()
    assert stats.gram is not None and stats.num_examples == len(features)
    assert relative_difference(stats.gram, features.T @ features) <= 1e-12
    size = float(np.abs(features).sum())
    for c in range(sample.num_classes):
        mine = features[labels == c]
        assert int(stats.class_counts[c]) == len(mine) and bool(stats.present[c]) == (len(mine) > 0)
        assert relative_difference(stats.class_sums[c], mine.sum(axis=0), scale=size) <= 1e-12
        expected_mean = mine.mean(axis=0) if len(mine) else np.zeros(features.shape[1])
        assert relative_difference(stats.class_means[c], expected_mean, scale=size) <= 1e-12
    expected_mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    assert relative_difference(stats.mean, expected_mean, scale=size) <= 1e-12


@given(sample=samples(dtypes=(torch.float16, torch.bfloat16, torch.float32, torch.float64)))
def test_features_of_any_precision_are_summed_as_the_float64_numbers_they_are(sample: Sample) -> None:
    if not bool(torch.isfinite(sample.features).all()):  # float16 ends at 65504
        with pytest.raises(ValueError, match="features must be finite"):
            FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes)
        return
    given_precision = FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes)
    promoted = FeatureStatistics.from_features(sample.features.double(), sample.labels, sample.num_classes)
    assert given_precision.class_sums.dtype == torch.float64
    assert torch.equal(given_precision.class_sums, promoted.class_sums)
    assert torch.equal(given_precision.gram, promoted.gram)


def test_the_gram_matrix_is_symmetric_to_the_bit() -> None:
    features = torch.randn(700, 67, generator=torch.Generator().manual_seed(0))
    gram = FeatureStatistics.from_features(features, torch.zeros(700, dtype=torch.int64), 1).gram
    assert gram is not None and torch.equal(gram, gram.T)
    total = FeatureStatistics.from_features(features[:300], torch.zeros(300, dtype=torch.int64), 1)
    total = total + FeatureStatistics.from_features(features[300:], torch.zeros(400, dtype=torch.int64), 1)
    assert total.gram is not None and torch.equal(total.gram, total.gram.T)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_narrow_integer_types_are_counted_right(dtype: torch.dtype) -> None:
    labels = torch.arange(300) % 100
    assert FeatureStatistics.from_features(torch.ones(300, 1), labels.to(dtype), 100).class_counts.tolist() == [3] * 100


COUNTS, SUMS = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.float64)
ZEROS = FeatureStatistics.zeros(2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureStatistics(COUNTS.float(), SUMS), r"\(any\) int64, got \(2,\) torch.float32"),
        (
            lambda: FeatureStatistics(COUNTS, torch.zeros(3, 3).double()),
            r"class_sums must be \(2, any\) float64, got \(3, 3\)",
        ),
        (lambda: FeatureStatistics(COUNTS, SUMS, SUMS[:, :2]), r"gram must be \(3, 3\) float64, got \(2, 2\)"),
        (lambda: ZEROS + FeatureStatistics.zeros(2, 3, gram=False), r"must have the same gram, got"),
    ],
)
def test_inconsistent_parts_are_refused(make: Callable[[], FeatureStatistics], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
