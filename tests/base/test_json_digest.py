import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.files import to_json, to_plain
from fedstats_app.base.json_digest import read_json_file, read_json_lines, read_with_digest, to_json_with_digest
from tests.support.damage import flipped

ENTRIES = {"name": "Größe", "values": [1, 0.1, None, True, "inf"], "inner": {"b": {}, "a": -0.0}}
LINES = [{"client": 3, "outcome": "merged"}, {"client": 12, "outcome": "failed", "reason": "a\nb"}]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")).filter(lambda key: key != "digest"), _VALUES))
def test_what_was_written_comes_back(entries: dict[str, object]) -> None:
    text = to_json_with_digest(entries)
    assert to_json_with_digest(read_with_digest(text, "it")) == text


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), _VALUES))
def test_plain_values_are_those_that_reading_the_json_gives(entries: dict[str, object]) -> None:
    assert repr(to_plain(entries)) == repr(json.loads(to_json(entries)))


def test_one_flipped_bit_anywhere_is_an_error_that_names_the_file_or_harmless() -> None:
    content = to_json_with_digest(ENTRIES).encode()
    refused = 0
    for damaged in flipped(content):
        try:
            found = read_with_digest(damaged, "/a/results.json")
        except ValueError as error:
            assert str(error).startswith("/a/results.json is damaged: ")
            refused += 1
        else:
            assert found == ENTRIES  # a blank between two values became another blank
    assert refused > 7.9 * len(content) - content.count(b" ")


def test_a_file_without_a_digest_is_damaged(tmp_path: Path) -> None:
    for read in (read_json_file, read_json_lines):
        path = tmp_path / "clients.jsonl"
        path.write_text(json.dumps(ENTRIES))
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}.* is damaged: it has no digest"):
            read(path)


def test_a_cut_last_line_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "clients.jsonl"
    content = "".join(to_json_with_digest(line, indent=None) + "\n" for line in LINES).encode()
    first = content.index(b"\n") + 1
    for end in range(first + 1, len(content) - 1):
        path.write_bytes(content[:end])
        with caplog.at_level(logging.WARNING, logger="fedstats_app"):
            assert read_json_lines(path) == LINES[:1]
        assert "line 2 was cut off" in caplog.text
        caplog.clear()
