"""What a stranger can send in place of statistics: nothing is allocated for it, and it counts for nothing."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstats_app.grid.collection import Collection
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import RejectedReply, read_statistics_reply
from tests.wire.replies import (
    DIM,
    FEW,
    FINGERPRINT,
    GRAM,
    NUM_SAMPLES,
    SCATTER,
    arrays,
    header,
    honest_reply,
    put,
    put_bytes,
    request_for,
    values,
    with_header,
)

REQUEST = request_for(fingerprint=FINGERPRINT)


def no_samples(content: RecordDict) -> None:
    for key in ("class-ids", "counts", "class-sums"):
        put(content, key, values(content, key)[:0])
    content["metrics"]["num-examples"] = 0  # type: ignore[index,call-overload]


def of_rank(rank: int, left_out: float) -> Callable[[RecordDict], None]:
    """Send other directions: the first axes, with values of 1."""

    def tamper(content: RecordDict) -> None:
        put(content, "scatter-values", np.ones(rank, np.float32))
        put(content, "scatter-directions", np.eye(rank, DIM, dtype=np.float16))
        put(content, "scatter-left-out", np.array(left_out))

    return tamper


def energy_without_samples(content: RecordDict) -> None:
    no_samples(content)
    of_rank(0, 1.0)(content)


def about(**values: str) -> Callable[[RecordDict], None]:
    record = ConfigRecord({key.replace("_", "-"): value for key, value in values.items()})
    return lambda content: content.update({"about": record})


@pytest.mark.parametrize(
    ("spec", "n", "tamper", "reason"),
    [
        (None, 30, no_samples, "scatter: must be zero without samples"),
        (None, FEW, no_samples, "within-factor: must have shape"),
        (SCATTER, 30, no_samples, "scatter-values: must have shape"),
        (SCATTER, 30, energy_without_samples, "scatter-left-out: must lie in"),
        (SCATTER, 30, of_rank(DIM, 1.0), r"scatter-left-out: must lie in \[0, 0\], got 1"),
        (
            SCATTER,
            6,
            of_rank(6 - 4 + 1, 0.0),
            "scatter-values: must have shape",
        ),  # six samples of four classes have two
        (
            None,
            30,
            about(backbone_fingerprint="00" * 32),
            "backbone: must be .*, fingerprint 5f5f5f5f5f5f5f5f, got 0000",
        ),
        (None, 30, lambda content: content.pop("about"), "backbone: must be the server's, .* got none"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(
    spec: StatisticsSpec | None, n: int, tamper: Callable[[RecordDict], object], reason: str
) -> None:
    request = request_for(spec or GRAM, fingerprint=FINGERPRINT)
    reply = honest_reply(request, n=n)
    read_statistics_reply(reply, request)
    tamper(reply.content)
    with pytest.raises(RejectedReply, match=reason):
        read_statistics_reply(reply, request, feature_dim=DIM)


@pytest.mark.parametrize("key", ["class-ids", "counts", "class-sums", "within", "within-factor"])
def test_a_claimed_shape_allocates_nothing(key: str) -> None:
    dtype = "'<i8'" if key in ("class-ids", "counts") else "'<f4'"
    reply = honest_reply(REQUEST, n=FEW if key == "within-factor" else NUM_SAMPLES)
    shape = "(40000000000, 6)" if key == "class-sums" else "(40000000000,)"
    put_bytes(reply.content, key, with_header(header(dtype, shape), arrays(reply.content)[key].data[128:]))
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()

    for feature_dim in (DIM, None):
        with pytest.raises(RejectedReply, match=key):
            read_statistics_reply(reply, REQUEST, feature_dim=feature_dim)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 20_000


def test_what_the_envelope_claims_counts_for_nothing_and_what_the_header_claims_is_bounded() -> None:
    reply = honest_reply(REQUEST)
    old = arrays(reply.content)["class-sums"]
    arrays(reply.content)["class-sums"] = Array("float32", (4, 10**9), old.stype, old.data)
    assert read_statistics_reply(reply, REQUEST).statistics.rows.feature_dim == DIM

    put_bytes(reply.content, "class-sums", with_header(header("'<f4'", "(4, 1000000000)"), old.data[128:]))
    with pytest.raises(RejectedReply, match=r"class-sums: must have shape \(4, '1..100000'\), got \(4, 1000000000\)"):
        read_statistics_reply(reply, REQUEST)


def test_values_near_the_largest_float64_cannot_overflow_a_sum() -> None:
    request = request_for(wire_dtype="float64")
    reply = honest_reply(request)
    put(reply.content, "within", np.diag(np.full(DIM, 1.7e308))[np.triu_indices(DIM)])

    with pytest.raises(RejectedReply, match="scatter: must have a trace in"):
        read_statistics_reply(reply, request)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Error(code=2, reason="ValueError: no such file"), "ValueError: no such file"),
        (Error(code=3), "error code 3"),
        (Error(code=2, reason="\x1b[31mline 1\nERROR forged line\x1b[0m\x07"), "line 1 ERROR forged line?"),
        (Error(code=2, reason="Traceback " + "x" * 10**6 + " KeyError: 'labels'"), "Traceback .* KeyError: 'labels'"),
    ],
)
def test_an_error_reply_fails_with_its_reason_on_one_short_line(error: Error, reason: str) -> None:
    reply = Message(error, reply_to=instruction(REQUEST.to_content(), node=2))
    collection = Collection(REQUEST, [False])

    outcome, _ = collection.fold(1, reply)

    assert outcome.outcome == "failed"
    assert len(outcome.reason) <= 500 and outcome.reason.isprintable()
    assert outcome.reason == reason or (".*" in reason and outcome.reason.endswith("KeyError: 'labels'"))


def test_the_same_reply_five_times_counts_once() -> None:
    collection = Collection(REQUEST, [True], DIM)
    outcomes = [collection.fold(1, honest_reply(REQUEST, node=2))[0].outcome for _ in range(5)]

    assert outcomes == ["merged"] + 4 * ["rejected"]
    assert "already" in collection.outcomes[1].reason
    assert collection.num_examples == 30 and collection.total.num_rows == 4


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    key=st.sampled_from(["class-ids", "counts", "class-sums", "within", "within-factor"]),
    flips=st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 300)),
)
def test_flipped_bytes_are_refused_or_harmless(key: str, flips: list[tuple[int, int]], cut: int | None) -> None:
    reply = honest_reply(REQUEST, n=FEW if key == "within-factor" else NUM_SAMPLES)
    data = bytearray(arrays(reply.content)[key].data)
    for position, mask in flips:
        data[position % len(data)] ^= mask
    put_bytes(reply.content, key, bytes(data[:cut]))

    try:
        received = read_statistics_reply(reply, REQUEST, feature_dim=DIM)
    except RejectedReply:
        return
    summed = received.statistics.summed()
    assert bool(torch.isfinite(summed.class_sums).all()) and bool(torch.isfinite(summed.gram).all())
    assert int(summed.class_counts.min()) >= 0 and summed.num_examples in (FEW, NUM_SAMPLES)
