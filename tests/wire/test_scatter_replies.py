"""Replies with a factor of the scatter: what arrives, what it costs, and what a stranger cannot send."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics, StatisticsSpec
from fedstats_app.wire import read_statistics_reply, statistics_reply
from tests.support.compare import relative_difference, same_bits
from tests.support.local_grid import instruction
from tests.wire.replies import (
    DIM,
    NUM_CLASSES,
    SCATTER,
    arrays,
    features_and_labels,
    honest_reply,
    request_for,
    scatter_of,
    values,
)

REQUEST = request_for(SCATTER)
VALUES, DIRECTIONS, LEFT_OUT = "scatter-values", "scatter-directions", "scatter-left-out"


def test_what_is_sent_arrives_and_is_counted() -> None:
    reply = honest_reply(REQUEST)
    received = read_statistics_reply(reply, REQUEST)
    [client] = received.statistics

    assert client.scatter is not None and not client.has_gram
    assert same_bits(client.scatter.values, torch.from_numpy(values(reply.content, VALUES)))
    assert same_bits(client.scatter.directions, torch.from_numpy(values(reply.content, DIRECTIONS)))
    assert client.scatter.left_out == float(values(reply.content, LEFT_OUT)) > 0.0
    sizes = {key: len(array.data) for key, array in arrays(reply.content).items()}
    assert (received.sizes[0].scatter, received.sizes[0].gram) == (2 * (4 + 2 * DIM) + 8 + 3 * 128, 0)
    assert received.wire_bytes == sum(sizes.values()) + 3 * 8 + 64


@pytest.mark.parametrize("rank", ["sqrt(n)", "0", "70%", "1.1KB"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 5, 30])
def test_made_of_the_gram_matrix_it_is_as_if_it_had_been_sent(n: int, dtype: str, rank: str) -> None:
    sent, derived = request_for(scatter_of(rank, dtype)), request_for(scatter_of(rank, dtype, gram=True))
    replies = [honest_reply(request, n=n) for request in (sent, derived)]

    one, other = (
        read_statistics_reply(reply, request) for reply, request in zip(replies, (sent, derived), strict=True)
    )

    assert not any(key.startswith("scatter") for key in arrays(replies[1].content))
    factors = [received.statistics[0].scatter for received in (one, other)]
    assert factors[0] is not None and factors[1] is not None and len(factors[0]) == len(factors[1])
    size = float(features_and_labels(n=n)[0].square().sum()) or 1.0
    products = [factor.scaled().T @ factor.scaled() for factor in factors if factor is not None]
    assert relative_difference(products[0], products[1], scale=size) <= (2e-4 if dtype == "float16" else 1e-6)
    assert factors[0].left_out == pytest.approx(factors[1].left_out, abs=1e-5 * size)
    [size] = other.sizes
    assert size.scatter == one.sizes[0].scatter
    assert other.wire_bytes == size.rows + size.gram + other.other_bytes


@given(n=st.integers(0, 40), kilobytes=st.sampled_from(["0.6KB", "0.9KB", "1.05KB", "1.1KB", "1.2KB", "2KB"]))
def test_every_client_keeps_a_budget_and_no_further_direction_would_fit(n: int, kilobytes: str) -> None:
    spec = scatter_of(kilobytes)
    request, allowed = request_for(spec), 1000 * float(kilobytes[:-2])
    try:
        received = read_statistics_reply(honest_reply(request, n=n), request)
    except ValueError as error:
        assert "without any direction of the scatter" in str(error)
        bare = read_statistics_reply(honest_reply(request_for(StatisticsSpec()), n=n), request_for(StatisticsSpec()))
        assert bare.wire_bytes + 8 + 3 * 128 > allowed
        return
    [client] = received.statistics
    assert received.wire_bytes <= allowed and client.scatter is not None
    complete = StatisticsSpec(scatter=spec.scatter).from_features(*features_and_labels(n=n), NUM_CLASSES).scatter
    assert complete is not None
    assert len(client.scatter) == len(complete) or received.wire_bytes + 4 + 2 * DIM > allowed


def test_who_has_only_the_gram_matrix_sends_a_factor_too_and_who_has_neither_is_told() -> None:
    features, labels = features_and_labels()
    summed = FeatureStatistics.from_features(features, labels, NUM_CLASSES)
    msg = instruction(REQUEST.to_content())
    own = ClientStatistics(ClassMeanRows.from_features(features, labels, NUM_CLASSES), summed.gram)
    received = read_statistics_reply(statistics_reply(msg, [own]), REQUEST)
    expected = read_statistics_reply(honest_reply(REQUEST), REQUEST)
    for one, other in zip(received.statistics, expected.statistics, strict=True):
        assert one.scatter is not None and other.scatter is not None
        assert torch.allclose(one.scatter.values, other.scatter.values)
    with pytest.raises(ValueError, match="asks for a factor of the scatter, got statistics without one"):
        statistics_reply(msg, [ClientStatistics(received.statistics[0].rows)])
