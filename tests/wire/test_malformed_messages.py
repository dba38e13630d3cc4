"""Every part of every message, of another type or left out, is refused by name: the same on clients and server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

from tests.wire.messages import ASKED, KINDS
from tests.wire.replies import with_header

OF_EVERY_TYPE: tuple[Any, ...] = (1, 0.5, True, "false", b"false", [1], [0.5], ["a"], [True])
REPLIES = [name for name, kind in KINDS.items() if kind.is_reply]


def keys(*records: type) -> Iterator[tuple[str, str, str]]:
    for name, kind in KINDS.items():
        for record, values in kind.make().items():
            if isinstance(values, records):
                yield from ((name, record, key) for key in values)


def is_allowed(value: Any, good: Any, key: str) -> bool:
    if isinstance(good, list) and good:
        return isinstance(value, list) and type(value[0]) is type(good[0])
    # FedProx sends its term as its user gave it.
    return type(value) is type(good) or (key == "proximal-mu" and type(value) is int)


@pytest.mark.parametrize("name", KINDS)
def test_the_gallery_starts_from_messages_that_are_read(name: str) -> None:
    KINDS[name].read(KINDS[name].make())


@pytest.mark.parametrize(("name", "record", "key"), [*keys(ConfigRecord, MetricRecord)])
def test_a_value_of_another_type_is_refused_by_name(name: str, record: str, key: str) -> None:
    kind = KINDS[name]
    good: Any = kind.make()[record][key]
    metrics = isinstance(kind.make()[record], MetricRecord)
    not_finite = [float("nan"), float("inf"), float("-inf")]
    for value in [*(value for value in OF_EVERY_TYPE if not is_allowed(value, good, key)), *not_finite]:
        # Metrics are numbers and lists of numbers: Flower takes nothing else.
        if metrics and type(value[0] if isinstance(value, list) else value) not in (int, float):
            continue
        content = kind.make()
        content[record][key] = value
        with pytest.raises(kind.refusal, match=f"{key}: must be .*, got ") as refusal:
            kind.read(content)
        assert len(str(refusal.value)) < 400, value


@pytest.mark.parametrize(("name", "record", "key"), [*keys(ConfigRecord, MetricRecord, ArrayRecord)])
def test_a_missing_value_is_refused_by_name_and_in_replies_an_additional_one(name: str, record: str, key: str) -> None:
    kind, content = KINDS[name], KINDS[name].make()
    value = content[record].pop(key)
    if key not in kind.optional:
        with pytest.raises(kind.refusal, match=f"{key}|must have the keys"):
            kind.read(content)
    if kind.is_reply:
        content = kind.make()
        content[record]["surprise"] = value
        with pytest.raises(kind.refusal, match=r"unexpected \['surprise'\]"):
            kind.read(content)


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_record_or_one_of_another_kind_is_refused_by_name(name: str) -> None:
    kind = KINDS[name]
    for record, good in kind.make().items():
        for other in (None, MetricRecord(), ConfigRecord(), ArrayRecord()):
            if type(other) is type(good) or (other is None and record in kind.optional):
                continue
            content = kind.make()
            del content[record]
            if other is not None:
                content[record] = other
            with pytest.raises(kind.refusal, match=record):
                kind.read(content)


@pytest.mark.parametrize("name", REPLIES)
def test_replies_that_are_errors_or_have_a_record_too_many_are_refused(name: str) -> None:
    kind, content = KINDS[name], KINDS[name].make()
    for error, reason in ((Error(100, "OSError: no disk"), "OSError: no disk"), (Error(3), "error code 3")):
        with pytest.raises(kind.refusal, match=reason):
            kind.reads(Message(error, reply_to=ASKED))
    content["surprise"] = MetricRecord()
    with pytest.raises(kind.refusal, match=r"unexpected \['surprise'\]"):
        kind.read(content)


def header(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n"


HOSTILE_ARRAYS: dict[str, Callable[[Array], Array]] = {
    "another serialisation": lambda good: Array(good.dtype, good.shape, "torch.save", good.data),
    "code in the header": lambda good: forged(good, with_header(header("__import__('os').abort()", "(1,)"), bytes(8))),
    "an endless header": lambda good: forged(good, with_header("(" * 60_000)),
    "a huge shape and few bytes": lambda good: forged(
        good, with_header(header(f"'{np.dtype(good.dtype).str}'", "(999999999999,)"), bytes(8))
    ),
    "cut": lambda good: forged(good, good.data[:-1]),
    "bytes behind": lambda good: forged(good, good.data + b"\0"),
    "another precision": lambda good: Array(good.numpy().astype(np.float16 if good.dtype != "float16" else np.float32)),
    "complex": lambda good: Array(good.numpy().astype(np.complex64)),
    "text": lambda good: Array(np.array(["a"])),
    "Fortran order": lambda good: Array(np.asfortranarray(np.ones((5, 6), good.dtype))),
}


def forged(good: Array, data: bytes) -> Array:
    return Array(good.dtype, good.shape, good.stype, data)


@pytest.mark.parametrize(("name", "record", "key"), [*keys(ArrayRecord)])
def test_a_hostile_array_is_refused_by_name(name: str, record: str, key: str) -> None:
    for hostile in HOSTILE_ARRAYS.values():
        content = KINDS[name].make()
        content[record][key] = hostile(content[record][key])
        with pytest.raises(KINDS[name].refusal, match=f"{key}: "):
            KINDS[name].read(content)
