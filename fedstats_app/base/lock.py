"""One folder, one process: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"
# What file systems say that have no such locks (some network ones): there the folder is used without.
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

_logger = logging.getLogger("fedstats_app")


class FolderInUseError(RuntimeError):
    """Another process, or another user of the folder in this one, holds its lock."""


def lock_folder(folder: Path) -> AbstractContextManager[object]:
    """Lock a folder from now until the end of the block or of the process.

    The lock is the system's, on a file `.lock` in the folder, which stays and means nothing by itself. A file system
    without locks is used without; the log says so.

    Raises
    ------
    FolderInUseError
        If the lock is held already.
    OSError
        If there is no such folder, or the file cannot be made.
    """
    folder.stat()  # filelock would make a folder that is not there
    # No soft fallback: a file that only exists would outlive a killed process.
    lock = FileLock(folder / LOCK_FILE, fallback_to_soft=False)
    try:
        return lock.acquire(blocking=False)
    except Timeout as error:
        raise FolderInUseError(
            f"{folder} is in use by another process, which must end first; a process that was killed holds nothing"
        ) from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _logger.warning("%s is not locked, its file system has no locks: %s", folder, error)
        return nullcontext()


def is_running(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; True if that cannot be found out."""
    if not (folder / LOCK_FILE).exists():
        return False
    try:
        with FileLock(folder / LOCK_FILE, fallback_to_soft=False).acquire(blocking=False):
            return False
    except (Timeout, OSError):
        return True
