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

from fedstats_app.storage.files import to_plain

_KEY, _PREFIX = "digest", "sha256:"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

_logger = logging.getLogger("fedstats_app")


def to_json_with_digest(entries: Mapping[str, object], *, indent: int | None = 2) -> str:
    """Write an object with a digest, by `fedstats_app.storage.files.to_plain`'s rules.

    Raises
    ------
    TypeError
        If something has no JSON form.
    """
    plain = to_plain(entries)
    return json.dumps({**plain, _KEY: _digest(plain)}, indent=indent, ensure_ascii=False, allow_nan=False)


def read_with_digest(text: str | bytes, where: str) -> tuple[dict[str, Any], bool]:
    """Return an object without its digest, and whether it had one: those of earlier versions had none.

    Parameters
    ----------
    text : str or bytes
        As `to_json_with_digest` wrote it.
    where : str
        The file, and which line of it, for the errors.

    Raises
    ------
    ValueError
        If it is no JSON object, or not the one whose digest it has.
    """
    try:
        entries = json.loads(text)
    except ValueError as error:  # of UTF-8 too
        raise ValueError(f"{where} is damaged: it is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{where} is damaged: it must be a JSON object, got {type(entries).__name__}")
    digest = entries.pop(_KEY, None)
    # Also where the flipped bit is in the name of the entry: its value is still one.
    if digest is None and not any(isinstance(value, str) and value.startswith(_PREFIX) for value in entries.values()):
        return entries, False
    if digest != _digest(entries):
        raise ValueError(f"{where} is damaged: its content does not have the SHA-256 that it says")
    return entries, True


def read_json_file(path: Path) -> dict[str, Any]:
    """Return the object of a file that `to_json_with_digest` made; one without a digest is said in the log.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged.
    """
    entries, had_digest = read_with_digest(path.read_bytes(), str(path))
    if not had_digest:
        note_without_digest(path)
    return entries


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of lines, as `read_json_file` does; what a crash left of a last line is left out.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is damaged, or has no digest behind one that has; the message says which.
    """
    lines = path.read_bytes().split(b"\n")
    found: list[dict[str, Any]] = []
    with_digest = 0
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        if number == len(lines) and not _has_an_end(line):
            _logger.warning("%s: line %d was cut off and is left out", path, number)
            continue
        entries, had_digest = read_with_digest(line, f"{path}, line {number}")
        if with_digest and not had_digest:
            raise ValueError(f"{path}, line {number} is damaged: it has no digest, but a line before it has")
        with_digest += had_digest
        found.append(entries)
    if len(found) > with_digest:
        note_without_digest(path)
    return found


def note_without_digest(path: Path) -> None:
    """Say in the log that a file is of a version that wrote no digests."""
    _logger.warning("%s is of an earlier version and has no digest: damage to it would not be noticed", path)


def _has_an_end(line: bytes) -> bool:
    """Return whether an object ends in a line without a line break: then the line was not cut off."""
    try:
        json.JSONDecoder().raw_decode(line.decode("utf-8", "replace"))
    except ValueError:
        return False
    return True


def _digest(entries: Mapping[str, object]) -> str:
    text = _ENCODER.encode(entries)
    return _PREFIX + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
