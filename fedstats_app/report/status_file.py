"""status.json: where a run stands, also where the disk has no room left for saying so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from fedstats_app.storage.files import to_json, write_atomically

# The file has this size from the beginning, blanks making up for what is not said yet: a longer reason then needs no
# new block of a full disk.
STATUS_BYTES = 4096


def write_status_file(path: Path, status: Mapping[str, object]) -> None:
    """Replace status.json in one step; where no new file can be written, write over the one that is there.

    A full disk and a folder without write permission both leave room for the latter.

    Parameters
    ----------
    path : Path
        The file.
    status : mapping
        By `fedstats_app.storage.files.to_json`'s rules, a string `reason` among it, which is cut to what the file has
        room for.

    Raises
    ------
    OSError
        If neither can be done; it is the first of the two errors.
    """
    content = status_bytes(status)
    try:
        write_atomically(path, content)
    except OSError as error:
        with contextlib.suppress(OSError):
            _write_over(path, content)
            return
        raise error


def status_bytes(status: Mapping[str, object]) -> bytes:
    """Return the file's content: JSON of `STATUS_BYTES` bytes, made so long by blanks before the last brace."""
    reason = str(status["reason"])
    text = to_json(status)
    while len(text.encode("utf-8", "replace")) > STATUS_BYTES - 1:
        reason = reason[: len(reason) * 3 // 4]
        text = to_json({**status, "reason": f"{reason} ... (cut)"})
    body = text.removesuffix("\n}").encode("utf-8", "replace")
    return body + b" " * (STATUS_BYTES - len(body) - 3) + b"\n}\n"


def _write_over(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size != len(content):
            raise OSError(f"{path} has not the room for another status")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
