"""What the numbers of a reply must satisfy, at the edges of what is allowed and beyond them."""

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, ScatterSpec, StatisticsSpec, TriangularFactor
from fedstats_app.testing import instruction
from fedstats_app.wire import Limits, RejectedReply, StatisticsRequest, read_statistics_reply, statistics_reply
from fedstats_app.wire.reading import MAX_COUNT, Malformed
from fedstats_app.wire.statistics_checks import MAX_FEATURE, check_rows, check_sums, check_within
from tests.wire.messages import DIM, NUM_CLASSES, NUM_SAMPLES, put, values

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
    """One sample has no scatter about its mean."""
    feature = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 12)))
    rows = StatisticsSpec().from_features(feature, torch.zeros(1, dtype=torch.int64), 1).rows
    direction = torch.linalg.qr(torch.ones(12, 1).double()).Q[:, 0]
    within = excess * EPS * float(feature.square().sum()) * torch.outer(direction, direction)

    if allowed:
        check_within(within, rows)
    else:
        with pytest.raises(Malformed, match="scatter: must"):
            check_within(within, rows)


def test_there_is_no_scatter_without_samples() -> None:
    rows = ClassMeanRows.zeros(3, 4)
    check_within(torch.zeros(4, 4, dtype=torch.float64), rows)
    for other in (torch.eye(4, dtype=torch.float64), TriangularFactor(torch.ones(1, 4, dtype=torch.float64))):
        with pytest.raises(Malformed, match="scatter: must be zero without samples"):
            check_within(other, rows)


NORM = 3.0
LIMITS = Limits(NORM, max_samples=1000)
FULL = StatisticsSpec(scatter=ScatterSpec(RankRule.parse("full"), "float32"))


def reply(
    spec: StatisticsSpec, *, scale: float = 1.0, copies: int = 1, gram: float = 0.0
) -> tuple[Message, StatisticsRequest]:
    """Return the reply of a client whose features have the largest norm there is, times ``scale``."""
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM_SAMPLES, DIM)) + 1.0)
    features *= scale * NORM / torch.linalg.vector_norm(features, dim=1, keepdim=True)
    labels = torch.arange(NUM_SAMPLES) % NUM_CLASSES
    request = StatisticsRequest(NUM_CLASSES, spec)
    made = request.statistics(features.repeat(copies, 1), labels.repeat(copies))
    if gram and made.gram is not None:
        made = ClientStatistics(made.rows, made.gram + gram * torch.eye(len(made.gram), dtype=torch.float64))
    return statistics_reply(instruction(request.to_content()), made), request


def read(spec: StatisticsSpec, *, scale: float = 1.0, copies: int = 1, gram: float = 0.0) -> int:
    message, request = reply(spec, scale=scale, copies=copies, gram=gram)
    return read_statistics_reply(message, request, feature_dim=DIM, limits=LIMITS).num_examples


@pytest.mark.parametrize("spec", [StatisticsSpec(), StatisticsSpec(gram=True), FULL], ids=["rows", "gram", "factor"])
def test_the_longest_features_are_merged_in_every_form(spec: StatisticsSpec) -> None:
    assert read(spec) == NUM_SAMPLES


@pytest.mark.parametrize("factor", [1.1, -1e4])
@pytest.mark.parametrize("spec", [StatisticsSpec(), StatisticsSpec(gram=True), FULL], ids=["rows", "gram", "factor"])
def test_means_longer_than_any_feature_are_refused(spec: StatisticsSpec, factor: float) -> None:
    with pytest.raises(RejectedReply, match=r"no feature of this backbone is longer than 3\.06, so no mean is either"):
        read(spec, scale=factor * 2)


def test_a_poisoned_gram_matrix_is_refused() -> None:
    with pytest.raises(RejectedReply, match=r"scatter: must have a trace in \[0, \d+\], got 6e\+06"):
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
