"""Statistics that no features of the backbone can give, or of more samples than anybody has, are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedstats_app.rank_rule import RankRule
from fedstats_app.statistics import (
    ClientStatistics,
    FeatureMap,
    IdentityMap,
    RandomFourierFeatures,
    RandomProjection,
    ScatterSpec,
    StatisticsSpec,
)
from fedstats_app.wire import Limits, RejectedReply, StatisticsRequest, read_statistics_reply, statistics_reply
from tests.support.local_grid import instruction
from tests.wire.replies import DIM, NUM_CLASSES, NUM_SAMPLES, put, values

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
