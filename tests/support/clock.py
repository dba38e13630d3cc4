"""A clock that moves only during sleep, and a heart that beats by it: no test waits, no thread is needed."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedstats_app.base.progress import SECONDS_PER_BEAT, Progress


class Clock:
    """Seconds that pass in :meth:`sleep`, where everything that goes by the clock has its turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.beats: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + SECONDS_PER_BEAT, end)
            for beat in list(self.beats):
                beat()


class Said(Progress):
    """Progress by a clock of tests, which keeps its lines with their times.

    Attributes
    ----------
    lines : list
        Of (seconds, line).
    """

    def __init__(self, clock: Clock) -> None:
        self.lines: list[tuple[float, str]] = []
        self.clock = clock
        super().__init__(lambda line: self.lines.append((clock.now, line)), clock)

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        self.clock.beats.append(self.beat)
        try:
            yield
        finally:
            self.clock.beats.remove(self.beat)

    @property
    def longest_silence(self) -> float:
        """Between two lines, or a line and now."""
        times = [0.0, *(time for time, _ in self.lines), self.clock.now]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def between(self, start: float, end: float) -> str:
        """Return the lines of a while."""
        return "\n".join(line for time, line in self.lines if start <= time <= end)
