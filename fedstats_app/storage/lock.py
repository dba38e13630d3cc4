"""One folder, one process: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

LOCK_FILE = ".lock"
# What file systems say that have no such locks (some network ones): there the folder is used without.
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

_logger = logging.getLogger("fedstats_app")


class FolderInUseError(RuntimeError):
    """Another process, or another user of the folder in this one, holds its lock."""


class FolderLock:
    """The only use of a folder, from when this is made until the end of its block or of the process.

    It is `flock` on a file `.lock` in the folder. The file stays and means nothing by itself: the system drops the lock
    of a process that was killed. There is no lock on Windows, nor on file systems without locks; the log says so of
    the latter.

    Parameters
    ----------
    folder : Path
        Which must exist.

    Raises
    ------
    FolderInUseError
        If somebody else holds the lock.
    OSError
        If the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if sys.platform == "win32":
            return
        import fcntl

        # Closed on exec: a child must not keep the folder of its killed parent.
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _UNSUPPORTED:
                _logger.warning("%s is not locked, its file system has no locks: %s", folder, error)
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise FolderInUseError(
                f"{folder} is in use by another process, which must end first; a process that was killed holds nothing"
            ) from error
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let others use the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
