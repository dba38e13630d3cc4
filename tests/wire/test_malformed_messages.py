"""Messages of every kind, with parts of another type, missing, hostile or changed at random, are refused by name.

Nothing is allocated for what a stranger claims, nothing but a refusal is raised, and no reason is long. Values of the
right type that cannot be are in test_impossible_values.py.
"""

import io
import pickle
import random
import resource
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedstats_app.grid.collection import Collection
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import RejectedReply, read_statistics_reply
from tests.wire.messages import (
    ASKED,
    DIM,
    FEW,
    FINGERPRINT,
    GRAM,
    KINDS,
    NUM_SAMPLES,
    SCATTER,
    arrays,
    copied,
    header,
    honest_reply,
    put,
    put_bytes,
    request_for,
    values,
    with_header,
)

OF_EVERY_TYPE: tuple[Any, ...] = (1, 0.5, True, "false", b"false", [1], [0.5], ["a"], [True])
REPLIES = [name for name, kind in KINDS.items() if kind.is_reply]
# Records of requests whose arrays have any names and shapes.
ANY_SHAPE = {"arrays", "fixed", "start"}


def keys(name: str, *records: type) -> list[tuple[str, str]]:
    """List the records of some types in a kind of message, each with every key."""
    good = KINDS[name].good()
    return [(record, key) for record, values in good.items() if isinstance(values, records) for key in values]


def is_allowed(value: Any, good: Any, key: str) -> bool:
    if isinstance(good, list) and good:
        return isinstance(value, list) and type(value[0]) is type(good[0])
    # FedProx sends its term as its user gave it.
    return type(value) is type(good) or (key == "proximal-mu" and type(value) is int)


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_another_type_is_refused_by_name(name: str) -> None:
    kind, not_finite = KINDS[name], [float("nan"), float("inf"), float("-inf")]
    for record, key in keys(name, ConfigRecord, MetricRecord):
        good: Any = kind.good()[record][key]
        metrics = isinstance(kind.good()[record], MetricRecord)
        for value in [*(value for value in OF_EVERY_TYPE if not is_allowed(value, good, key)), *not_finite]:
            # Metrics are numbers and lists of numbers: Flower takes nothing else.
            if metrics and type(value[0] if isinstance(value, list) else value) not in (int, float):
                continue
            content = kind.good()
            content[record][key] = value
            with pytest.raises(kind.refusal, match=f"{key}: must be .*, got ") as refusal:
                kind.read(content)
            assert len(str(refusal.value)) < 400, value


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_value_is_refused_by_name_and_in_replies_an_additional_one(name: str) -> None:
    kind = KINDS[name]
    for record, key in keys(name, ConfigRecord, MetricRecord, ArrayRecord):
        content = kind.good()
        value = content[record].pop(key)
        if key not in kind.optional:
            with pytest.raises(kind.refusal, match=f"{key}|must have the keys"):
                kind.read(content)
        if kind.is_reply:
            content = kind.good()
            content[record]["surprise"] = value
            with pytest.raises(kind.refusal, match=r"unexpected \['surprise'\]"):
                kind.read(content)


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_record_or_one_of_another_kind_is_refused_by_name(name: str) -> None:
    kind = KINDS[name]
    for record, good in kind.good().items():
        for other in (None, MetricRecord(), ConfigRecord(), ArrayRecord()):
            if type(other) is type(good) or (other is None and record in kind.optional):
                continue
            content = kind.good()
            del content[record]
            if other is not None:
                content[record] = other
            with pytest.raises(kind.refusal, match=record):
                kind.read(content)


@pytest.mark.parametrize("name", REPLIES)
def test_replies_that_are_errors_or_have_a_record_too_many_are_refused(name: str) -> None:
    kind, content = KINDS[name], KINDS[name].good()
    for error, reason in ((Error(100, "OSError: no disk"), "OSError: no disk"), (Error(3), "error code 3")):
        with pytest.raises(kind.refusal, match=reason):
            kind.reads(Message(error, reply_to=ASKED))
    content["surprise"] = MetricRecord()
    with pytest.raises(kind.refusal, match=r"unexpected \['surprise'\]"):
        kind.read(content)


def saved(save: Callable[..., None], *values: object) -> bytes:
    stream = io.BytesIO()
    save(stream, *values)
    return stream.getvalue()


def of(good: Array, shape: str = "(1,)", dtype: str = "") -> bytes:
    """Return eight bytes under a header of the good array's dtype, or of another."""
    return with_header(header(dtype or f"'{np.dtype(good.dtype).str}'", shape), bytes(8))


# Of the values of a good array, and of its bytes.
OTHER_VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "another precision": lambda good: good.astype(np.float16 if good.dtype != np.float16 else np.float32),
    "unsigned": lambda good: good.astype(np.uint64),
    "flags": lambda good: good.astype(np.bool_),
    "complex": lambda good: good.astype(np.complex64),
    "text": lambda good: np.array(["a"]),
    "Fortran order": lambda good: np.asfortranarray(np.ones((5, 6), good.dtype)),
    "the other byte order": lambda good: good.astype(good.dtype.newbyteorder() if good.itemsize > 1 else np.int64),
}
OTHER_BYTES: dict[str, Callable[[Array], bytes]] = {
    "no bytes": lambda good: b"",
    "half a magic": lambda good: good.data[:5],
    "half a header": lambda good: good.data[:50],
    "another version": lambda good: good.data.replace(b"\x01\x00", b"\x02\x00", 1),
    "an archive": lambda good: saved(np.savez, np.zeros(3)),
    "a pickle": lambda good: pickle.dumps(print),
    "objects": lambda good: saved(np.save, np.array([print, None])),
    "fields": lambda good: of(good, dtype="[('a', '<f4')]"),
    "code in the header": lambda good: of(good, dtype="__import__('os').abort()"),
    "no dtype": lambda good: of(good, dtype="()"),
    "half an expression": lambda good: with_header("("),
    "a deep header": lambda good: with_header("-" * 900 + "1"),
    "an endless header": lambda good: with_header("(" * 60_000),
    "a padded header": lambda good: with_header(header("'<f4'", "(1,)").replace("}", "}" + " " * 60_000)),
    "a huge shape and few bytes": lambda good: of(good, "(999999999999,)"),
    "more digits than an integer has": lambda good: of(good, f"({'9' * 5000},)"),
    "a negative extent": lambda good: of(good, "(-1,)"),
    "cut": lambda good: good.data[:-1],
    "a byte behind": lambda good: good.data + b"\0",
    "a megabyte behind": lambda good: good.data + bytes(2**20),
}


@pytest.mark.parametrize("name", [name for name in KINDS if keys(name, ArrayRecord)])
def test_hostile_arrays_are_refused_by_name(name: str) -> None:
    for record, key in keys(name, ArrayRecord):
        refuse_hostile(name, record, key)


def refuse_hostile(name: str, record: str, key: str) -> None:
    good, numbers = KINDS[name].good()[record][key], KINDS[name].good()[record][key].numpy()
    hostile = [Array(change(numbers)) for change in OTHER_VALUES.values()]
    hostile += [Array(good.dtype, good.shape, good.stype, change(good)) for change in OTHER_BYTES.values()]
    hostile.append(Array(good.dtype, good.shape, "torch.save", good.data))
    if record not in ANY_SHAPE:
        hostile.append(Array(numbers[None]))
    if numbers.dtype.kind == "f":
        hostile += [Array(np.full_like(numbers, value)) for value in (np.nan, np.inf, -np.inf)]
    for one in hostile:
        content = KINDS[name].good()
        content[record][key] = one
        with pytest.raises(KINDS[name].refusal, match=f"{key}: |a head must be finite"):
            KINDS[name].read(content)


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
        # Six samples of four classes have two directions.
        (SCATTER, 6, of_rank(3, 0.0), "scatter-values: must have shape"),
        (None, 30, about(backbone_fingerprint="00" * 32), "backbone: must be .*, fingerprint 5f5f5f5f5f5f5f5f, got 00"),
        (None, 30, lambda content: content.pop("about"), "backbone: must be the server's, .* got none"),
    ],
)
def test_parts_must_fit(
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
    assert peak < 100_000 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 20_000


def test_what_the_envelope_claims_counts_for_nothing_and_what_the_header_claims_is_bounded() -> None:
    reply = honest_reply(REQUEST)
    old = arrays(reply.content)["class-sums"]
    arrays(reply.content)["class-sums"] = Array("float32", (4, 10**9), old.stype, old.data)
    assert read_statistics_reply(reply, REQUEST).statistics.rows.feature_dim == DIM

    put_bytes(reply.content, "class-sums", with_header(header("'<f4'", "(4, 1000000000)"), old.data[128:]))
    with pytest.raises(RejectedReply, match=r"class-sums: must have shape \(4, '1..100000'\), got \(4, 1000000000\)"):
        read_statistics_reply(reply, REQUEST)


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

    outcome, _ = collection.fold(reply)

    assert outcome.outcome == "failed"
    assert len(outcome.reason) <= 500 and outcome.reason.isprintable()
    assert outcome.reason == reason or (".*" in reason and outcome.reason.endswith("KeyError: 'labels'"))


def test_the_same_reply_five_times_counts_once() -> None:
    collection = Collection(REQUEST, [True], DIM)
    outcomes = [collection.fold(honest_reply(REQUEST, node=2))[0].outcome for _ in range(5)]

    assert outcomes == ["merged"] + 4 * ["rejected"] and "already" in collection.outcomes[1].reason
    assert collection.num_examples == 30 and collection.total.num_rows == 4


# In all, over the kinds of messages.
MUTATIONS = [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
NUMBERS = (0, 1, -1, 2**31, 2**62, -(2**62), 0.5, -0.0, 1e-320, 1e300, float("nan"), float("inf"), -float("inf"))
VALUES = (*NUMBERS, "", "x" * 5000, "__class__", "\x00", "٣", b"", b"\x80\x04." * 9, True, [], [1, 2], [0.5] * 9, ["a"])
DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint64", "bool", "object", "<U9", "complex128", "V8", "?!")
SHAPES = ((), (0,), (1,), (-1,), (2**40,), (2**20, 2**20), (3, 0), (1,) * 40)


def changed_array(array: Array, rng: random.Random) -> Array:
    """Return an array with another header, other bytes, or other numbers."""
    data = bytearray(array.data)
    how = rng.randrange(7)
    if how == 0 and data:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif how == 2:
        data += rng.randbytes(rng.randint(1, 64))
    elif how == 3:
        return Array(rng.choice(DTYPES), array.shape, array.stype, array.data)
    elif how == 4:
        return Array(array.dtype, rng.choice([*SHAPES, array.shape[::-1]]), array.stype, array.data)
    elif how == 5:
        return Array(array.dtype, array.shape, rng.choice(["", "numpy.ndarray", "pickle", "x"]), array.data)
    else:
        return in_numbers(array, rng)
    return Array(array.dtype, array.shape, array.stype, bytes(data))


def in_numbers(array: Array, rng: random.Random) -> Array:
    numbers = array.numpy().copy()
    if numbers.size and numbers.dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            value = np.array(rng.choice(NUMBERS)).astype(numbers.dtype)
            numbers.reshape(-1)[rng.randrange(numbers.size)] = value
            if rng.random() < 0.2:
                numbers = numbers * value
    return Array(numbers.astype(rng.choice([numbers.dtype, np.dtype("float64")])))


def change(content: RecordDict, rng: random.Random) -> None:
    """Change one thing of a message's content, in place."""
    names = list(content)
    name = rng.choice(names) if names else "x"
    record, how = content.get(name), rng.randrange(12)
    if record is None or how == 0:
        content[rng.choice(["surprise", "", *names])] = rng.choice([ConfigRecord, MetricRecord, ArrayRecord])()
    elif how == 1:
        del content[name]
    elif how == 2:
        content[rng.choice(["surprise", *names])] = record
    elif not record:
        return
    elif how == 3:
        del record[rng.choice(list(record))]
    elif how == 4:
        record[rng.choice(["surprise", "", "x" * 3000])] = record[rng.choice(list(record))]  # type: ignore[assignment]
    elif how == 5:
        one, other = rng.choice(list(record)), rng.choice(list(record))
        record[one], record[other] = record[other], record[one]  # type: ignore[assignment]
    elif isinstance(record, ArrayRecord):
        key = rng.choice(list(record))
        record[key] = changed_array(record[key], rng)
    else:
        key = rng.choice(list(record))
        record[key] = rng.choice([*VALUES, *nearby(record[key], rng)])  # type: ignore[assignment]


def nearby(value: object, rng: random.Random) -> list[object]:
    """Return values of the same type, not far away: they come further than nonsense."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):
        return [value + 1, value - 1, -value, value * 2]
    if isinstance(value, bytes):
        return [value[:-1], value + b"\x00", rng.randbytes(len(value))]
    if isinstance(value, str):
        return [value[:-1], value + "a", value.upper()]
    return [value[:-1], [*value, *value[-1:]], value[::-1]] if isinstance(value, list) else []


@pytest.mark.parametrize("mutations", MUTATIONS)
@pytest.mark.parametrize("name", KINDS)
def test_it_is_read_or_refused(name: str, mutations: int) -> None:
    kind, rng = KINDS[name], random.Random(name)
    good, refused = kind.good(), 0
    number = mutations // len(KINDS)
    for index in range(number):
        content = copied(good)
        for _ in range(rng.choice([1, 1, 2, 3])):
            try:
                change(content, rng)
            except Exception:  # noqa: BLE001
                continue  # Flower does not carry it, or an earlier change is in the way
        try:
            kind.read(content)
        except kind.refusal as error:
            assert len(str(error)) < 2000, f"change {index}"
            refused += 1
        except Exception as error:
            raise AssertionError(f"change {index} of {name!r} raised {type(error).__name__}") from error
    assert refused > number / 4
