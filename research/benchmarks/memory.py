"""Peak resident memory of a piece of work, above what was there before it (Linux)."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_RESET_PEAK = "5"  # see proc(5), /proc/pid/clear_refs


class Rise:
    """The peak of this process's resident memory from now on.

    Raises
    ------
    OSError
        Where the kernel keeps no peak that can be reset (not Linux, or a container that forbids it).
    """

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        self._before = _resident("VmRSS")

    def megabytes(self) -> float:
        """Return by how many MB it has risen above its start."""
        return _resident("VmHWM") - self._before


def with_peak_memory(work: Callable[[], _T]) -> tuple[_T, float]:
    """Return the result of ``work``, and by how many MB resident memory rose above its start while it ran.

    Raises
    ------
    OSError
        Where the kernel keeps no peak that can be reset (not Linux, or a container that forbids it).
    """
    rise = Rise()
    result = work()
    return result, rise.megabytes()


def _resident(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status must have a line {field}, it has none")
    return int(found[1]) * 1024 / 1e6
