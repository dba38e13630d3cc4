"""A gallery of what a stranger can send: each is refused by name, and the head is that of the honest clients."""

from __future__ import annotations

import io
import pickle
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
from fedstats_app.heads import solve_ridge
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.wire import RejectedReply, read_statistics_reply
from tests.support.compare import same_bits
from tests.support.local_grid import instruction
from tests.wire.replies import (
    DIM,
    FEW,
    FINGERPRINT,
    NUM_CLASSES,
    NUM_SAMPLES,
    arrays,
    honest_reply,
    npy,
    put,
    put_bytes,
    request_for,
    values,
    with_header,
)

Tamper = Callable[[RecordDict], object]
REQUEST = request_for(fingerprint=FINGERPRINT)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def entry(key: str, value: float, index: int = 2) -> Tamper:
    """Set one entry of an array."""

    def tamper(content: RecordDict) -> None:
        array = values(content, key)
        array.flat[index] = value
        put(content, key, array)

    return tamper


def changed(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Tamper:
    """Replace an array by a function of it."""
    return lambda content: put(content, key, change(values(content, key)))


def rewritten(key: str, change: Callable[[bytes], bytes]) -> Tamper:
    """Replace the bytes of an array by a function of them."""
    return lambda content: put_bytes(content, key, change(arrays(content)[key].data))


def header(key: str, text: str) -> Tamper:
    """Replace the header of an array and leave its values."""
    return rewritten(key, lambda data: with_header(text, data[128:]))


def record(name: str, value: ConfigRecord | None) -> Tamper:
    """Replace, add or remove a record."""
    return lambda content: content.pop(name) if value is None else content.update({name: value})


def metric(key: str, value: float | list[int]) -> Tamper:
    return lambda content: content["metrics"].update({key: value})  # type: ignore[union-attr]


def plain(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n"


def all_of(*tampers: Tamper) -> Tamper:
    def tamper(content: RecordDict) -> None:
        for one in tampers:
            one(content)

    return tamper


def npz(data: bytes) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, np.zeros(3))
    return stream.getvalue()


def smaller_gram(content: RecordDict) -> None:
    """Send the Gram matrix of the scatter about the class means, which is positive semi-definite but too small."""
    sums, counts = values(content, "class-sums").astype(np.float64), values(content, "counts")
    between = (sums.T / counts) @ sums
    put(content, "gram", values(content, "gram") - between[np.triu_indices(DIM)].astype(np.float32))


def no_samples(content: RecordDict) -> None:
    for key in ("class-ids", "counts", "class-sums"):
        put(content, key, values(content, key)[:0])
    content["metrics"]["num-examples"] = 0


MALFORMED: dict[str, tuple[Tamper, str]] = {
    **{
        f"{value} in {key}": (entry(key, value), f"{key}: must be finite")
        for key in ("class-sums", "gram")
        for value in NOT_FINITE
    },
    "float64 sums on a float32 wire": (changed("class-sums", np.float64), "class-sums: must be <f4"),
    "integer sums": (changed("class-sums", np.int32), "class-sums: must be <f4"),
    "int32 class ids": (changed("class-ids", np.int32), "class-ids: must be <i8"),
    "unsigned class ids": (changed("class-ids", np.uint64), "class-ids: must be <i8"),
    "fractional counts": (changed("counts", lambda a: a + 0.5), "counts: must be <i8"),
    "NaN as a count": (changed("counts", lambda a: a * np.nan), "counts: must be <i8"),
    "boolean counts": (changed("counts", np.bool_), "counts: must be <i8"),
    "big-endian sums": (changed("class-sums", lambda a: a.astype(">f4")), "class-sums: must be <f4 .* got >f4"),
    "Fortran order": (changed("class-sums", np.asfortranarray), "class-sums: must be .* got <f4 in Fortran order"),
    "flat sums": (changed("class-sums", np.ravel), "class-sums: .*(shape|dimension)"),
    "sums of rank 3": (changed("class-sums", lambda a: a[None]), "class-sums: .*(shape|dimension)"),
    "column of ids": (changed("class-ids", lambda a: a[:, None]), "class-ids: must have shape"),
    "scalar count": (changed("counts", lambda a: np.array(30)), "counts: must have shape"),
    "square Gram matrix": (changed("gram", lambda a: np.eye(DIM, dtype=np.float32)), "gram: must have shape"),
    "Gram matrix short of one": (changed("gram", lambda a: a[:-1]), "gram: must have shape"),
    "a row of sums too many": (changed("class-sums", lambda a: np.vstack([a, a[:1]])), "class-sums: must have shape"),
    "a count too few": (changed("counts", lambda a: a[1:]), "counts: must have shape"),
    "more ids than classes": (changed("class-ids", lambda a: np.arange(99)), "class-ids: must have shape"),
    "another feature dimension": (
        all_of(
            changed("class-sums", lambda a: a[:, :4].copy()),
            changed("gram", lambda a: np.eye(4, dtype=np.float32)[np.triu_indices(4)] * 1e4),
        ),
        "class-sums: .*(shape|dimension)",
    ),
    "no feature at all": (changed("class-sums", lambda a: a[:, :0]), "class-sums: .*(shape|dimension)"),
    "huge shape, few bytes": (header("class-ids", plain("'<i8'", "(999999999999,)")), "class-ids: must have shape"),
    "huge Gram matrix, few bytes": (header("gram", plain("'<f4'", "(999999999999,)")), "gram: must have shape"),
    "more digits than an integer has": (header("gram", plain("'<f4'", f"({'9' * 5000},)")), "gram: must have the .npy"),
    "negative extent": (header("gram", plain("'<f4'", "(-1,)")), "gram: must have the .npy header"),
    "truncated values": (rewritten("class-sums", lambda data: data[:-1]), "class-sums: shape .* needs .* bytes, got"),
    "truncated header": (rewritten("class-sums", lambda data: data[:50]), "class-sums: must have the .npy header"),
    "truncated magic": (rewritten("class-sums", lambda data: data[:5]), "class-sums: must be an .npy array"),
    "no bytes": (rewritten("gram", lambda data: b""), "gram: must be an .npy array"),
    "bytes behind the values": (rewritten("gram", lambda data: data + b"\0"), "gram: shape .* needs .* bytes, got"),
    "a megabyte behind the values": (rewritten("counts", lambda data: data + bytes(2**20)), "counts: shape .* needs"),
    "zip archive": (rewritten("gram", npz), "gram: must be an .npy array"),
    "pickle": (rewritten("gram", lambda data: pickle.dumps(print)), "gram: must be an .npy array"),
    "object array": (
        rewritten("gram", lambda data: npy(np.array([print, None]), allow_pickle=True)),
        r"gram: must be <f4 in C order, got \|O",
    ),
    "structured dtype": (header("gram", plain("[('a', '<f4')]", "(21,)")), "gram: must have the .npy header"),
    "code in the header": (
        header("gram", plain("__import__('os').abort()", "(21,)")),
        "gram: must have the .npy header",
    ),
    "header that ends in the middle": (header("gram", "("), "gram: must have the .npy header"),
    "empty dtype": (header("gram", plain("()", "(21,)")), "gram: must have"),
    "deep header": (header("gram", "-" * 900 + "1"), "gram: must have the .npy header"),
    "header of 60,000 bytes": (header("gram", plain("'<f4'", "(21,)").replace("}", "}" + " " * 60_000)), "gram: must"),
    "version 2": (rewritten("gram", lambda data: data.replace(b"\x01\x00", b"\x02\x00", 1)), "gram: must be an .npy"),
    "another serialisation": (
        lambda content: arrays(content).update({"gram": Array("float32", (21,), "torch.save", b"\x80\x04.")}),
        "gram: must be a numpy.ndarray, got 'torch.save'",
    ),
    "negative count": (entry("counts", -1, 0), r"counts: must lie in \[1, 10000000\], got -1"),
    "zero count": (entry("counts", 0, 0), "counts: must lie in .* got 0"),
    "count of 2^53": (entry("counts", 2**53, 0), "counts: must lie in .* to 9007199254740992"),
    "counts that overflow their sum": (changed("counts", lambda a: np.full_like(a, 2**62)), "counts: must lie in"),
    "counts that do not sum to num-examples": (metric("num-examples", 29), "must sum to num-examples 29, got 30"),
    "class id out of range": (entry("class-ids", NUM_CLASSES, -1), r"class-ids: must lie in \[0, 5\), got 0 to 5"),
    "negative class id": (entry("class-ids", -1, 0), "class-ids: must lie in .* got -1"),
    "class twice": (entry("class-ids", 0, 1), "class-ids: at most 1 rows per class, got 2"),
    "classes out of order": (changed("class-ids", lambda a: a[::-1].copy()), "class-ids: must ascend"),
    "samples but a sum of zero": (
        changed("class-sums", lambda a: np.where(np.arange(len(a))[:, None] == 1, 0, a)),
        "class-sums: class 1 has .* samples but a sum of exactly zero",
    ),
    "features no network has": (changed("class-sums", lambda a: a * np.float32(1e30)), r"means must lie within 1e\+10"),
    "a negative number of suppressed classes": (
        metric("num-suppressed-classes", -1),
        "num-suppressed-classes: must be",
    ),
    "half a suppressed class": (
        metric("num-suppressed-classes", 0.5),
        "num-suppressed-classes: must be a whole number",
    ),
    "negative num-examples": (
        metric("num-examples", -30),
        "num-examples: must be a whole number of at least 0, got -30",
    ),
    "negative num-unreadable": (metric("num-unreadable", -1), "num-unreadable: must be"),
    "negative Gram matrix": (changed("gram", np.negative), r"gram: must have a trace in \(0"),
    "Gram matrix of zeros": (changed("gram", np.zeros_like), r"gram: must have a trace in \(0"),
    "Gram matrix that is not PSD": (entry("gram", 1e6, 1), "gram: must be positive semi-definite"),
    "negative square": (entry("gram", -0.5, 0), "gram: must be positive semi-definite"),
    "Gram matrix smaller than the sums force": (smaller_gram, "not smaller than the class sums force"),
    "Gram matrix half as large": (changed("gram", lambda a: a / 2), "not smaller than the class sums force"),
    "Gram matrix no features have": (changed("gram", lambda a: a * np.float32(1e30)), "gram: must have a trace in"),
    "Gram matrix without samples": (no_samples, "gram: must be zero without samples"),
    "another backbone": (
        record("about", ConfigRecord({"backbone-fingerprint": "00" * 32})),
        "backbone: must be the server's, fingerprint 5f5f5f5f5f5f5f5f, got 0000000000000000",
    ),
    "no backbone": (record("about", None), "backbone: must be the server's, .* got none"),
    "endless backbone": (
        record("about", ConfigRecord({"backbone-fingerprint": "5f" * 10_000})),
        "backbone-fingerprint: must be at most 128 characters",
    ),
    "unknown engine": (
        record("about", ConfigRecord({"backbone-fingerprint": "5f" * 32, "engine": "abacus" * 100})),
        "engine: must be one of auto, torch, openvino, openvino-bf16, got 'abacus",
    ),
}


OF_FEW_SAMPLES: dict[str, tuple[Tamper, str]] = {
    **{f"{value} in a factor": (entry("gram-factor", value), "gram-factor: must be finite") for value in NOT_FINITE},
    "float64 factor": (changed("gram-factor", np.float64), "gram-factor: must be <f4"),
    "factor of rank 2": (changed("gram-factor", lambda a: a[None]), "gram-factor: must have shape"),
    "factor short of one": (changed("gram-factor", lambda a: a[:-1]), "gram-factor: a factor for 6 features has no"),
    "more rows than samples": (changed("gram-factor", lambda a: np.resize(a, 20)), "gram-factor: must have shape"),
    "as many numbers as the matrix": (changed("gram-factor", lambda a: np.resize(a, 21)), "gram-factor: must have"),
    "negative diagonal": (changed("gram-factor", np.negative), "gram-factor: the diagonal of a factor must not be neg"),
    "factor of zeros": (changed("gram-factor", np.zeros_like), r"gram: must have a trace in \(0"),
    "factor of half the matrix": (changed("gram-factor", lambda a: a / 2), "not smaller than the class sums force"),
    "factor without a row": (changed("gram-factor", lambda a: a[:6]), "not smaller than the class sums force"),
    "a factor no features have": (changed("gram-factor", lambda a: a * np.float32(1e30)), "gram: must have a trace"),
    "factor without samples": (no_samples, "gram-factor: must have shape"),
    "both forms": (
        lambda content: put(content, "gram", np.zeros(21, np.float32)),
        r"missing \[\], unexpected \['gram'\]",
    ),
}


def forged(tamper: Tamper, *, node: int = 2, few: bool = False) -> Message:
    reply = honest_reply(REQUEST, seed=1, node=node, n=FEW if few else NUM_SAMPLES)
    tamper(reply.content)
    return reply


def test_the_gallery_starts_from_a_reply_that_is_accepted() -> None:
    received = read_statistics_reply(forged(lambda content: None), REQUEST, feature_dim=DIM)

    assert received.num_examples == 30 and len(MALFORMED) >= 30


@pytest.mark.parametrize("feature_dim", [DIM, None], ids=["known dimension", "unknown dimension"])
@pytest.mark.parametrize("case", MALFORMED | OF_FEW_SAMPLES)
def test_it_is_refused_by_name_and_the_head_is_that_of_the_honest(case: str, feature_dim: int | None) -> None:
    tamper, reason = (MALFORMED | OF_FEW_SAMPLES)[case]
    honest, attacked = (Collection(REQUEST, [False], feature_dim) for _ in range(2))
    before, after = honest_reply(REQUEST, seed=0, node=1), honest_reply(REQUEST, seed=2, node=3)
    for reply in (before, after):
        honest.fold(1, reply)

    attacked.fold(1, before)
    outcome, received = attacked.fold(1, forged(tamper, few=case in OF_FEW_SAMPLES))
    attacked.fold(1, after)

    assert (outcome.client, outcome.outcome, received) == (2, "rejected", None)
    with pytest.raises(RejectedReply, match=reason):
        read_statistics_reply(forged(tamper, few=case in OF_FEW_SAMPLES), REQUEST, feature_dim=DIM)
    assert attacked.num_merged == 2 and attacked.total_wire_bytes == honest.total_wire_bytes
    heads = [solve_ridge(collection.statistics(0).summed()) for collection in (attacked, honest)]
    assert same_bits(heads[0].weight, heads[1].weight)


@pytest.mark.parametrize("key", ["class-ids", "counts", "class-sums", "gram", "gram-factor"])
def test_a_claimed_shape_allocates_nothing(key: str) -> None:
    dtype = "<i8" if key in ("class-ids", "counts") else "<f4"
    reply = forged(
        header(key, plain(repr(dtype), "(40000000000, 6)" if key == "class-sums" else "(40000000000,)")),
        few=key == "gram-factor",
    )
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
    reply = forged(lambda content: None)
    old = arrays(reply.content)["class-sums"]
    arrays(reply.content)["class-sums"] = Array("float32", (4, 10**9), old.stype, old.data)
    assert read_statistics_reply(reply, REQUEST).statistics[0].rows.feature_dim == DIM

    header("class-sums", plain("'<f4'", "(4, 1000000000)"))(reply.content)
    with pytest.raises(RejectedReply, match=r"class-sums: must have shape \(4, '1..100000'\), got \(4, 1000000000\)"):
        read_statistics_reply(reply, REQUEST)


def test_values_near_the_largest_float64_cannot_overflow_a_sum() -> None:
    request = request_for(wire_dtype="float64")
    reply = honest_reply(request)
    put(reply.content, "gram", np.diag(np.full(DIM, 1.7e308))[np.triu_indices(DIM)])

    with pytest.raises(RejectedReply, match="gram: must have a trace in"):
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
    assert collection.num_examples == 30 and collection.statistics(0).num_rows == 4


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    key=st.sampled_from(["class-ids", "counts", "class-sums", "gram", "gram-factor"]),
    flips=st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 300)),
)
def test_flipped_bytes_are_refused_or_harmless(key: str, flips: list[tuple[int, int]], cut: int | None) -> None:
    reply = forged(lambda content: None, few=key == "gram-factor")
    data = bytearray(arrays(reply.content)[key].data)
    for position, mask in flips:
        data[position % len(data)] ^= mask
    put_bytes(reply.content, key, bytes(data[:cut]))

    try:
        received = read_statistics_reply(reply, REQUEST, feature_dim=DIM)
    except RejectedReply:
        return
    summed = received.statistics[0].summed()
    assert bool(torch.isfinite(summed.class_sums).all()) and bool(torch.isfinite(summed.gram).all())
    assert int(summed.class_counts.min()) >= 0 and summed.num_examples in (FEW, NUM_SAMPLES)


def test_several_means_are_bounded_by_the_request() -> None:
    request = request_for(StatisticsSpec(means_per_class=2))
    reply = honest_reply(request)
    put(reply.content, "class-ids", np.zeros_like(values(reply.content, "class-ids")))

    with pytest.raises(RejectedReply, match="at most 2 rows per class"):
        read_statistics_reply(reply, request)
