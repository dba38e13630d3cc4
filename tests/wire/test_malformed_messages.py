"""Every part of every message, of another type or left out, is refused by name: the same on clients and server."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from tests.wire.messages import ASKED, KINDS
from tests.wire.replies import header, with_header

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
