"""Messages changed at random are read or refused: nothing else is raised, and no reason is long."""

from __future__ import annotations

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.wire.messages import KINDS, copied

# In all, over the kinds of messages.
MUTATIONS = [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
NUMBERS = (0, 1, -1, 2**31, 2**62, -(2**62), 0.5, -0.0, 1e-320, 1e300, float("nan"), float("inf"), -float("inf"))
VALUES = (
    *NUMBERS,
    "",
    "x" * 5000,
    "__class__",
    "\x00",
    "٣",
    b"",
    b"\x80\x04." * 9,
    True,
    [],
    [1, 2],
    [0.5] * 99,
    ["a"],
)
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
