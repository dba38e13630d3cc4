"""What a user sees while clients are asked: a line now and then, with the time since the run began."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 5.0


def say(line: str) -> None:
    """Print one line of progress for the user."""
    print(f"[fedstats] {line}", flush=True)


class Progress:
    """The lines of one run.

    Parameters
    ----------
    write : callable
        Prints a line.
    """

    def __init__(self, write: Callable[[str], None] = say) -> None:
        self.say = write
        self._started = time.perf_counter()
        self._last = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    @property
    def elapsed(self) -> str:
        """Seconds since the run began, in words."""
        return f"{self.seconds:.0f} s"

    def now_and_then(self, line: str, *, in_any_case: bool = False) -> None:
        """Say a line, unless the last one of this kind was said only a few seconds ago."""
        if in_any_case or time.perf_counter() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.perf_counter()
            self.say(line)
