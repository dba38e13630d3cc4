"""What the numbers of a reply must satisfy, at the edges of what is allowed and beyond them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics import (
    ClassMeanRows,
    ClientStatistics,
    FeatureMap,
    FeatureStatistics,
    GramFactor,
    IdentityMap,
    RandomFourierFeatures,
    RandomProjection,
    ScatterSpec,
    StatisticsSpec,
)
from fedstats_app.testing import instruction
from fedstats_app.wire import Limits, RejectedReply, StatisticsRequest, read_statistics_reply, statistics_reply
from fedstats_app.wire.reading import MAX_COUNT, Malformed
from fedstats_app.wire.statistics_checks import MAX_FEATURE, check_gram, check_gram_factor, check_rows, check_sums
from tests.wire.replies import DIM, NUM_CLASSES, NUM_SAMPLES, put, values

EPS = torch.finfo(torch.float32).eps


def rows_of(means: list[list[float]], counts: list[int]) -> ClassMeanRows:
    return ClassMeanRows(torch.arange(len(counts)), torch.tensor(counts), torch.tensor(means), len(counts))


@pytest.mark.parametrize("count", [1, MAX_COUNT])
def test_counts_up_to_the_bound_are_allowed(count: int) -> None:
    check_rows(torch.tensor([0, 2]), torch.tensor([1, count]), 3, 1)


def test_means_up_to_the_bound_are_allowed_whatever_the_count() -> None:
    check_sums(rows_of([[MAX_FEATURE, 0.0]], [1000]))

    with pytest.raises(Malformed, match=r"means must lie within 1e\+10, got 1.1e\+10"):
        check_sums(rows_of([[-1.1 * MAX_FEATURE, 0.0]], [1000]))


def test_only_a_sum_of_exactly_zero_is_forgotten() -> None:
    """The squares of a tiny sum vanish: its mean has length 0, but it is one."""
    check_sums(rows_of([[1.0, 0.0], [0.0, 1e-30]], [1, 2]))
    tiny = torch.tensor([[1.0, 0.0], [0.0, 1e-300]], dtype=torch.float64)
    check_sums(ClassMeanRows(torch.arange(2), torch.ones(2, dtype=torch.int64), None, 2, class_sums=tiny))

    with pytest.raises(Malformed, match="class 1 has 2 samples but a sum of exactly zero"):
        check_sums(rows_of([[1.0, 0.0], [0.0, 0.0]], [1, 2]))


@pytest.mark.parametrize(("excess", "allowed"), [(0, True), (1.5, True), (-1.9, True), (-2.1, False), (-99, False)])
def test_what_rounding_can_do_is_tolerated_and_no_more(excess: float, allowed: bool) -> None:
    """One sample: the Gram matrix is f f^T, the least the sum allows; then one direction is taken away from it."""
    feature = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 12)))
    statistics = FeatureStatistics.from_features(feature, torch.zeros(1, dtype=torch.int64), 1)
    direction = torch.linalg.qr(torch.cat([feature.T, torch.ones(12, 1)], dim=1).to(torch.float64)).Q[:, 1]
    gram = statistics.gram + excess * EPS * statistics.gram.trace() * torch.outer(direction, direction)
    rows = StatisticsSpec().from_features(feature, torch.zeros(1, dtype=torch.int64), 1).rows

    if allowed:
        check_gram(gram, rows, EPS)
    else:
        with pytest.raises(Malformed, match="positive semi-definite"):
            check_gram(gram, rows, EPS)


def test_counts_of_another_class_are_seen() -> None:
    """Thirty samples' sum said to be three samples' is more than the Gram matrix allows."""
    rng = np.random.default_rng(1)
    labels = torch.from_numpy(np.repeat([0, 1], [30, 3]))
    features = torch.from_numpy(rng.normal(size=(33, 4)) + 3)
    statistics = FeatureStatistics.from_features(features, labels, 2)
    swapped = ClassMeanRows(torch.arange(2), statistics.class_counts.flip(0), None, 2, class_sums=statistics.class_sums)

    with pytest.raises(Malformed, match="not smaller than the class sums force"):
        check_gram(statistics.gram, swapped, EPS)


@pytest.mark.parametrize("samples", [1, 2, 9, 30])
@pytest.mark.parametrize("change", ["none", "sums larger", "sums elsewhere", "row missing", "counts smaller"])
def test_a_factor_is_refused_where_its_gram_matrix_is(samples: int, change: str) -> None:
    draw = torch.Generator().manual_seed(samples)
    features = torch.rand(samples, 40, generator=draw)
    labels = torch.randint(4, (samples,), generator=draw)
    rows = StatisticsSpec().from_features(features, labels, 4).rows
    factor = GramFactor.of(features.double())
    sums, counts = rows.class_sums, rows.counts
    if change == "sums larger":
        sums = 1.01 * sums
    elif change == "sums elsewhere":
        sums = sums + 0.01 * torch.randn(sums.shape, generator=draw)
    elif change == "row missing":
        factor = GramFactor(factor.trapezoid[:-1])
    elif change == "counts smaller":
        counts = (counts - 1).clamp(min=1)
    rows = ClassMeanRows(rows.class_ids, counts, num_classes=4, class_sums=sums)
    eps = torch.finfo(torch.float32).eps
    refused = False
    try:
        check_gram(factor.gram(), rows, eps)
    except Malformed:
        refused = True
    assert refused == (change != "none") or change == "counts smaller" or samples == 1
    if refused:
        with pytest.raises(Malformed):
            check_gram_factor(factor, rows, eps)
    else:
        check_gram_factor(factor, rows, eps)


NORM = 3.0
LIMITS = Limits(NORM, max_samples=1000)
FULL = StatisticsSpec(scatter=ScatterSpec(RankRule.parse("full"), "float32"))
MAPS: tuple[FeatureMap, ...] = (
    IdentityMap(),
    RandomProjection(12, 3),
    RandomProjection(4, 3, "tanh"),
    RandomProjection(40, 3, "identity"),
    RandomFourierFeatures(10, 1.0, 3),
)


def reply(
    spec: StatisticsSpec, *, scale: float = 1.0, copies: int = 1, gram: float = 0.0
) -> tuple[Message, StatisticsRequest]:
    """Return the reply of a client whose features have the largest norm there is, times ``scale``."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(NUM_SAMPLES, DIM)) + 1.0)
    features *= scale * NORM / torch.linalg.vector_norm(features, dim=1, keepdim=True)
    labels = torch.arange(NUM_SAMPLES) % NUM_CLASSES
    request = StatisticsRequest(NUM_CLASSES, (spec,))
    (made,) = request.statistics(features.repeat(copies, 1), labels.repeat(copies))
    if gram and made.gram is not None:
        made = ClientStatistics(made.rows, made.gram + gram * torch.eye(len(made.gram), dtype=torch.float64))
    return statistics_reply(instruction(request.to_content()), [made]), request


def read(spec: StatisticsSpec, *, scale: float = 1.0, copies: int = 1, gram: float = 0.0) -> int:
    message, request = reply(spec, scale=scale, copies=copies, gram=gram)
    return read_statistics_reply(message, request, feature_dim=DIM, limits=LIMITS).num_examples


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
def test_the_longest_features_are_merged_in_every_form(feature_map: FeatureMap) -> None:
    for spec in (
        StatisticsSpec(feature_map=feature_map),
        StatisticsSpec(gram=True, feature_map=feature_map),
        StatisticsSpec(feature_map=feature_map, scatter=FULL.scatter),
    ):
        assert read(spec) == NUM_SAMPLES


@pytest.mark.parametrize("factor", [1.1, -1e4])
@pytest.mark.parametrize("spec", [StatisticsSpec(), StatisticsSpec(gram=True), FULL], ids=["rows", "gram", "factor"])
def test_means_longer_than_any_feature_are_refused(spec: StatisticsSpec, factor: float) -> None:
    with pytest.raises(RejectedReply, match=r"no feature of this backbone is longer than 3\.06, so no mean is either"):
        read(spec, scale=factor * 2)


def test_a_poisoned_gram_matrix_is_refused() -> None:
    with pytest.raises(RejectedReply, match=r"gram: must have a trace in \(0, 281\], got 6e\+06"):
        read(StatisticsSpec(gram=True), gram=1e6)


def test_more_scatter_than_features_can_have_is_refused() -> None:
    message, request = reply(FULL)
    put(message.content, "scatter-values", 4 * values(message.content, "scatter-values"))

    with pytest.raises(RejectedReply, match="scatter-values: must have an energy of at most"):
        read_statistics_reply(message, request, feature_dim=DIM, limits=LIMITS)


def test_more_samples_than_anybody_has_are_refused() -> None:
    assert read(StatisticsSpec(), copies=33) == 990
    with pytest.raises(RejectedReply, match=r"counts: must sum to at most 1000 \(max-client-samples\), got 1020"):
        read(StatisticsSpec(), copies=34)
