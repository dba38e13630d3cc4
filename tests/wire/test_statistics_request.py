"""Requests: what the strategies ask arrives, and what no client should do is refused on the client."""

from __future__ import annotations

import torch

from fedstats_app.statistics import RandomFourierFeatures, RandomProjection, StatisticsSpec
from fedstats_app.wire import StatisticsRequest, read_statistics_request
from tests.support.compare import same_bits
from tests.support.local_grid import instruction


def test_a_request_arrives_as_it_was_sent() -> None:
    sent = StatisticsRequest(
        3,
        (
            StatisticsSpec(gram=True, means_per_class=2),
            StatisticsSpec(feature_map=RandomFourierFeatures(16, 2, seed=2**62)),
            StatisticsSpec(gram=True, feature_map=RandomProjection(8, seed=1, activation="tanh")),
        ),
        wire_dtype="float64",
        seed=2**63 - 1,
        server_round=7,
        backbone_fingerprint="ab" * 32,
        class_names=("cat", "dog", "Łódź"),
        holdout=0,
    )

    assert read_statistics_request(instruction(sent.to_content())) == sent


def test_a_request_gives_one_set_of_statistics_per_specification() -> None:
    request = StatisticsRequest(4, (StatisticsSpec(gram=True), StatisticsSpec(feature_map=RandomProjection(9, 0))))
    features, labels = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3

    first, second = request.statistics(features, labels)

    assert same_bits(first.rows.class_sums[1], features[labels == 1].to(torch.float64).sum(dim=0))
    assert first.gram is not None and second.gram is None and second.rows.feature_dim == 9
