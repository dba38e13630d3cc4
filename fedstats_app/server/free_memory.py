"""Memory that is free goes back to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back_memory() -> None:
    """Return to the system what this process has freed, where the C library is GNU's; elsewhere do nothing.

    GNU's keeps what threads free, for each thread apart. A server that goes through large tensors in one thread after
    another is several times as large then as all that it holds.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # no such library or function; on Windows None is no library
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
