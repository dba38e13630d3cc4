"""Count of work done by several processes of one machine: a file to which each appends a byte per piece.

Appending is one step of the system's, so that no process waits for another and none is missed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TALLIES = "tallies"
_NEW, _KNOWN = b"n", b"k"


class Tally:
    """Numbers of pieces appended so far: new work, and work whose result was there already."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.new, self.known = file, 0, 0

    def look(self) -> None:
        """Count the bytes appended since the last look."""
        with suppress(OSError, ValueError):  # ValueError: the file was closed meanwhile
            found = self._file.read()
            self.new, self.known = self.new + found.count(_NEW), self.known + found.count(_KNOWN)


@contextmanager
def tallied(root: Path, name: str) -> Iterator[Tally | None]:
    """Keep a tally until the end of the block, by a name that no other has; None where it cannot be written.

    The root is a folder of the user's own, which the processes that are counted know.
    """
    path = root / TALLIES / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, 0o600), "rb", buffering=0)
    except OSError:
        yield None
        return
    try:
        with file:
            yield Tally(file)
    finally:
        with suppress(OSError):
            path.unlink()


def add_to_tally(root: Path, name: str, number: int, *, known: bool) -> None:
    """Append a number of pieces of work to a tally; do nothing if this machine keeps no such tally."""
    if not number:
        return
    with suppress(OSError):  # also if there is no such tally
        file = os.open(root / TALLIES / name, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, (_KNOWN if known else _NEW) * number)
        finally:
            os.close(file)
