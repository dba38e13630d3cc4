"""JSON objects that say what they were when they were written: a flipped bit in a file is an error that names it.

The last entry, `digest`, is "sha256:" and the SHA-256 of all others as JSON with sorted keys and without spaces.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstats_app.base.files import to_plain

_KEY, _PREFIX = "digest", "sha256:"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

_logger = logging.getLogger("fedstats_app")


def to_json_with_digest(entries: Mapping[str, object], *, indent: int | None = 2) -> str:
    """Write an object with a digest, by `fedstats_app.base.files.to_plain`'s rules.

    Raises
    ------
    TypeError
        If something has no JSON form.
    """
    plain = to_plain(entries)
    return json.dumps({**plain, _KEY: _digest(plain)}, indent=indent, ensure_ascii=False, allow_nan=False)


def read_with_digest(text: str | bytes, where: str) -> dict[str, Any]:
    """Read an object that `to_json_with_digest` wrote, and return it without its digest.

    Raises
    ------
    ValueError
        If it is no JSON object, or not the one whose digest it has; it says `where`, the file and its line.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:  # of UTF-8 too
        raise ValueError(f"{where} is damaged: it is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{where} is damaged: it must be a JSON object, got {type(entries).__name__}")
    digest = entries.pop(_KEY, None)
    if digest is None:
        raise ValueError(f"{where} is damaged: it has no digest")
    if digest != _digest(entries):
        raise ValueError(f"{where} is damaged: its content does not have the SHA-256 that it says")
    return entries


def read_json_file(path: Path) -> dict[str, Any]:
    """Read the object of a file that `to_json_with_digest` made; ValueError if it is damaged."""
    return read_with_digest(path.read_bytes(), str(path))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file of lines; what a crash left of a last line is left out, and said in the log.

    Raises
    ------
    ValueError
        If a line is damaged; the message says which.
    """
    lines = path.read_bytes().split(b"\n")
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if line and number == len(lines) and not _has_an_end(line):
            _logger.warning("%s: line %d was cut off and is left out", path, number)
        elif line:
            found.append(read_with_digest(line, f"{path}, line {number}"))
    return found


def _has_an_end(line: bytes) -> bool:
    """Tell whether an object ends in a line without a line break: then the line was not cut off."""
    try:
        json.JSONDecoder().raw_decode(line.decode("utf-8", "replace"))
    except ValueError:
        return False
    return True


def _digest(plain: Mapping[str, object]) -> str:
    return _PREFIX + hashlib.sha256(_ENCODER.encode(plain).encode("utf-8", "surrogatepass")).hexdigest()
