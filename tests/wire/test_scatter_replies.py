"""Replies with a factor of the scatter: what arrives, what it costs, and what a stranger cannot send."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedstats_app.grid.collection import Collection
from fedstats_app.rank_rule import RankRule
from fedstats_app.statistics import ClientStatistics, FeatureStatistics, ScatterSpec, StatisticsSpec
from fedstats_app.wire import RejectedReply, StatisticsRequest, read_statistics_reply, statistics_reply
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples
from tests.support.local_grid import instruction
from tests.wire.replies import (
    DIM,
    NUM_CLASSES,
    SCATTER,
    arrays,
    features_and_labels,
    honest_reply,
    put,
    request_for,
    values,
)

REQUEST = request_for(SCATTER)
VALUES, DIRECTIONS, LEFT_OUT = "scatter-values", "scatter-directions", "scatter-left-out"
Tamper = Callable[[RecordDict], object]


def spec_of(rank: str, dtype: str = "float16", *, gram: bool = False) -> StatisticsSpec:
    return StatisticsSpec(gram=gram, scatter=ScatterSpec(RankRule.parse(rank), dtype))


def changed(key: str, change: Callable[[np.ndarray], object]) -> Tamper:
    return lambda content: put(content, key, np.asarray(change(values(content, key))))


def first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[0] = value
        return array

    return change


def of_rank(rank: int, left_out: float = 0.0) -> Tamper:
    """Send other directions: the first axes, with values of 1."""

    def tamper(content: RecordDict) -> None:
        put(content, VALUES, np.ones(rank, np.float32))
        put(content, DIRECTIONS, np.eye(rank, DIM, dtype=np.float16))
        put(content, LEFT_OUT, np.array(left_out))

    return tamper


def no_samples(content: RecordDict) -> None:
    for key in ("class-ids", "counts", "class-sums"):
        put(content, key, values(content, key)[:0])
    content["metrics"]["num-examples"] = 0  # type: ignore[index,call-overload]


def energy_without_samples(content: RecordDict) -> None:
    no_samples(content)
    of_rank(0, 1.0)(content)


MALFORMED: dict[str, tuple[Tamper, str]] = {
    **{
        f"{value} in {key}": (changed(key, first(value)), f"{key}: must be finite")
        for key in (VALUES, DIRECTIONS, LEFT_OUT)
        for value in (np.nan, np.inf, -np.inf)
    },
    "half precision values": (changed(VALUES, np.float16), f"{VALUES}: must be <f4"),
    "single precision directions": (changed(DIRECTIONS, np.float32), f"{DIRECTIONS}: must be <f2"),
    "single precision energy": (changed(LEFT_OUT, np.float32), f"{LEFT_OUT}: must be <f8"),
    "one direction less": (changed(DIRECTIONS, lambda a: a[:1]), f"{DIRECTIONS}: must have shape"),
    "a feature less": (changed(DIRECTIONS, lambda a: a[:, :5].copy()), f"{DIRECTIONS}: must have shape"),
    "a list of energies": (changed(LEFT_OUT, lambda a: a[None]), f"{LEFT_OUT}: must have shape"),
    "negative values": (changed(VALUES, np.negative), f"{VALUES}: must be at least 0 and not rise"),
    "rising values": (changed(VALUES, lambda a: a[::-1].copy()), f"{VALUES}: must be at least 0 and not rise"),
    "values no features have": (
        changed(VALUES, lambda a: a * np.float32(1e20)),
        f"{VALUES}: must have an energy of at",
    ),
    "longer directions": (changed(DIRECTIONS, lambda a: a * np.float16(1.02)), f"{DIRECTIONS}: must be orthonormal"),
    "the same direction twice": (changed(DIRECTIONS, lambda a: a[[0, 0]]), f"{DIRECTIONS}: must be orthonormal"),
    "directions of zero": (
        changed(DIRECTIONS, np.zeros_like),
        f"{DIRECTIONS}: must be orthonormal within 0.0039, got 1",
    ),
    "negative energy": (changed(LEFT_OUT, lambda a: -1e-3), rf"{LEFT_OUT}: must lie in \[0, .*, got -0.001"),
    "more energy than can be left": (
        changed(LEFT_OUT, lambda a: a * 100),
        rf"{LEFT_OUT}: must lie in \[0",
    ),
    "energy left out of nothing": (of_rank(DIM, 1.0), rf"{LEFT_OUT}: must lie in \[0, 0\], got 1"),
    "energy no features have": (of_rank(0, 1e300), f"{LEFT_OUT}: must lie in"),
    "more directions than features": (of_rank(DIM + 1), f"{VALUES}: must have shape"),
    "directions without samples": (no_samples, f"{VALUES}: must have shape"),
    "energy without samples": (energy_without_samples, f"{LEFT_OUT}: must lie in"),
    "a Gram matrix that nobody asked for": (
        lambda content: put(content, "gram", np.zeros(21, np.float32)),
        r"missing \[\], unexpected \['gram'\]",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_it_is_refused_by_name_and_the_sums_are_those_of_the_honest(case: str) -> None:
    tamper, reason = MALFORMED[case]
    collection = Collection(REQUEST, [True], DIM)
    collection.fold(1, honest_reply(REQUEST, seed=0, node=1))
    before = collection.statistics(0).low_rank()
    reply = honest_reply(REQUEST, seed=1, node=2)
    tamper(reply.content)

    outcome, _ = collection.fold(1, reply)

    assert outcome.outcome == "rejected"
    with pytest.raises(RejectedReply, match=reason):
        read_statistics_reply(reply, REQUEST, feature_dim=DIM)
    after = collection.statistics(0).low_rank()
    assert same_bits(before.scatter, after.scatter) and before.left_out == after.left_out and len(after.rows) == 4


def test_more_directions_than_samples_leave_are_refused() -> None:
    """Six samples of four classes have two."""
    reply = honest_reply(REQUEST, n=6)
    read_statistics_reply(reply, REQUEST)
    of_rank(6 - len(values(reply.content, "counts")) + 1)(reply.content)
    with pytest.raises(RejectedReply, match=f"{VALUES}: must have shape"):
        read_statistics_reply(reply, REQUEST)


def test_what_is_sent_arrives_and_is_counted() -> None:
    reply = honest_reply(REQUEST)
    received = read_statistics_reply(reply, REQUEST)
    [client] = received.statistics

    assert client.scatter is not None and not client.has_gram
    assert same_bits(client.scatter.values, torch.from_numpy(values(reply.content, VALUES)))
    assert same_bits(client.scatter.directions, torch.from_numpy(values(reply.content, DIRECTIONS)))
    assert client.scatter.left_out == float(values(reply.content, LEFT_OUT)) > 0.0
    sizes = {key: len(array.data) for key, array in arrays(reply.content).items()}
    assert received.scatter_bytes == (2 * (4 + 2 * DIM) + 8 + 3 * 128,) and received.gram_bytes == (0,)
    assert received.wire_bytes == sum(sizes.values()) + 3 * 8 + 64


@pytest.mark.parametrize("rank", ["sqrt(n)", "0", "3", "70%", "full", "1.1KB"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 30])
def test_made_of_the_gram_matrix_it_is_as_if_it_had_been_sent(n: int, dtype: str, rank: str) -> None:
    sent, derived = request_for(spec_of(rank, dtype)), request_for(spec_of(rank, dtype, gram=True))
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
    assert other.scatter_bytes == one.scatter_bytes
    assert other.wire_bytes == sum(other.row_bytes) + sum(other.gram_bytes) + other.other_bytes


@given(n=st.integers(0, 40), kilobytes=st.sampled_from(["0.6KB", "0.9KB", "1.05KB", "1.1KB", "1.2KB", "2KB"]))
def test_every_client_keeps_a_budget_and_no_further_direction_would_fit(n: int, kilobytes: str) -> None:
    spec = spec_of(kilobytes)
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
    received = read_statistics_reply(statistics_reply(msg, summed), REQUEST)
    expected = read_statistics_reply(honest_reply(REQUEST), REQUEST)
    for one, other in zip(received.statistics, expected.statistics, strict=True):
        assert one.scatter is not None and other.scatter is not None
        assert torch.allclose(one.scatter.values, other.scatter.values)
    with pytest.raises(ValueError, match="asks for a factor of the scatter, got statistics without one"):
        statistics_reply(msg, ClientStatistics(received.statistics[0].rows))


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    sample=samples(kinds=("random", "non-negative", "duplicates", "constant", "one constant feature", "low rank")),
    wire_dtype=st.sampled_from(["float32", "float64"]),
    factor_dtype=st.sampled_from(["float16", "float32"]),
    rank=st.sampled_from(["sqrt(n)", "full", "1", "0", "90%"]),
    means_per_class=st.integers(1, 3),
)
def test_honest_replies_are_never_refused(
    sample: Sample, wire_dtype: str, factor_dtype: str, rank: str, means_per_class: int
) -> None:
    spec = StatisticsSpec(means_per_class=means_per_class, scatter=ScatterSpec(RankRule.parse(rank), factor_dtype))
    request = StatisticsRequest(sample.num_classes, (spec,), wire_dtype=wire_dtype)
    made = request.statistics(sample.features, sample.labels)
    assume(not bool((made[0].rows.class_sums.to(torch.float32) == 0).all(dim=1).any()))

    reply = statistics_reply(instruction(request.to_content()), made)

    received = read_statistics_reply(reply, request, feature_dim=sample.features.shape[1])
    assert received.num_examples == len(sample.labels)


@pytest.mark.parametrize("factor_dtype", ["float16", "float32"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(("n", "dim"), [(1, 64), (40, 64), (500, 64), (3000, 16)])
def test_honest_replies_of_real_size_are_never_refused(n: int, dim: int, scale: float, factor_dtype: str) -> None:
    rng = torch.Generator().manual_seed(n)
    labels = torch.randint(0, 10, (n,), generator=rng)
    features = scale * (100 + 0.01 * torch.randn(n, dim, generator=rng))
    for rank in ("sqrt(n)", "full"):
        request = StatisticsRequest(10, (spec_of(rank, factor_dtype),))
        reply = statistics_reply(instruction(request.to_content()), request.statistics(features, labels))
        assert read_statistics_reply(reply, request, feature_dim=dim).num_examples == n
