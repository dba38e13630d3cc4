import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.files import append_lines, to_json, write_atomically

_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class _DiskFullError(OSError):
    pass


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "results.json"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise _DiskFullError

    monkeypatch.setattr(*((os, "fsync", fail) if step == "fsync" else (Path, "replace", fail)))
    with pytest.raises(_DiskFullError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_the_file_appears_whole_and_after_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "head"
    seen: list[tuple[bool, list[int]]] = []
    real_fsync = os.fsync

    def look(descriptor: int) -> None:
        real_fsync(descriptor)
        seen.append((path.exists(), [entry.stat().st_size for entry in tmp_path.iterdir()]))

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(path, b"12345")
    assert seen == [(False, [5])] and path.read_bytes() == b"12345"


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    append_lines(path, '{"client": 0}')
    append_lines(path, '{"client": 1}')
    assert path.read_bytes() == b'{"client": 0}\n{"client": 1}\n'


@pytest.mark.parametrize("left", [b'{"cli', b'{"a": 1}\n{"cli', b'{"a": 1}\n' + b"x" * 10_000])
def test_what_a_crash_left_of_a_line_is_cut_off_by_the_next(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "clients.jsonl"
    path.write_bytes(left)
    append_lines(path, '{"client": 1}')
    assert path.read_bytes() == left[: left.rfind(b"\n") + 1] + b'{"client": 1}\n'


def test_a_line_for_which_there_is_no_room_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clients.jsonl"
    append_lines(path, '{"client": 0}')

    def fail(*_: object) -> None:
        raise _DiskFullError

    with monkeypatch.context() as patched, pytest.raises(_DiskFullError):
        patched.setattr(os, "fsync", fail)
        append_lines(path, '{"client": 1}')
    assert path.read_bytes() == b'{"client": 0}\n'


@given(_JSON_VALUES)
def test_json_values_come_back(value: object) -> None:
    assert json.loads(to_json(value)) == value and "\n" not in to_json(value, indent=None)


def test_numbers_that_are_not_finite_follow_the_rule() -> None:
    text = to_json({"nan": math.nan, "inf": math.inf, "minus": [-np.inf]}, indent=None)
    assert text == '{"nan": null, "inf": "inf", "minus": ["-inf"]}'
    assert float(json.loads(text)["minus"][0]) == -math.inf


def test_numpy_numbers_tuples_paths_and_the_order_of_keys() -> None:
    value = {"z": np.int64(3), "a": (np.float32(0.5), True), "path": Path("folder")}
    assert to_json(value, indent=None) == '{"z": 3, "a": [0.5, true], "path": "folder"}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"methods": {"fed3r": [1, {2}]}}, r"\$\.methods\.fed3r\[1\].*got set"),
        ({"counts": {3: "three"}}, r"\$\.counts.*keys must be strings, got 3 \(int\)"),
        ({"blob": b"abc"}, r"\$\.blob.*got bytes"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_place(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        to_json(value)
