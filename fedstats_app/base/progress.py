"""Lines of progress: the current step, how far it is, and an estimate of the time left."""

from __future__ import annotations

import io
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# The promise is a line every 10 s; the heart beats once a second, and on a busy machine a line takes its time.
LONGEST_SILENCE, SECONDS_PER_BEAT = 6.0, 1.0
# Between lines of results that come fast, such as those of rounds.
SECONDS_BETWEEN_LINES = 4.0


def say(line: str) -> None:
    """Print one line of progress for the user, in one piece: two threads may have something to say."""
    print(f"[fedstats] {line}\n", end="", flush=True)


def print_any_text() -> None:
    """Print characters that the console or pipe cannot encode as escapes; pipes on Windows encode few."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is none, and takes everything
            stream.reconfigure(errors="backslashreplace")


def duration(seconds: float) -> str:
    """Write a time in the unit that suits: 0.4 s, 51 s, 12 min, 3.5 h."""
    if seconds < 119.5:
        return f"{round(seconds, 1 if seconds < 9.95 else None):g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass
class Step:
    """A piece of work, perhaps within another.

    Attributes
    ----------
    text : str
        Current work; ``{done}``, ``{now}`` (the one after those done) and ``{total}`` stand for numbers.
    clock : callable
        Returns seconds.
    total, done : int
        Amount of work, 0 if unknown, and of what is done, in any unit.
    """

    text: str
    clock: Callable[[], float]
    total: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self.started, self.changed = self.clock(), -math.inf

    def at(self, done: int, text: str = "") -> None:
        """Note the work done and the current work; the step within is the next part of it."""
        if done != self.done:
            self.changed = self.clock()
        self.done, self.text = done, text or self.text

    def __str__(self) -> str:
        """Return the text with its numbers."""
        numbers = {"{done}": self.done, "{now}": min(self.done + 1, self.total), "{total}": self.total}
        return re.sub(r"\{(done|now|total)\}", lambda name: f"{numbers[name[0]]:,}", self.text)


class Progress:
    """Steps within steps, and the lines printed about them.

    Parameters
    ----------
    write : callable
        Prints a line.
    clock : callable
        Returns seconds that only ever grow.
    """

    def __init__(self, write: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._started = self._last = clock()
        self._last_result = -math.inf
        self._steps: list[Step] = []

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return self._clock() - self._started

    @property
    def elapsed(self) -> str:
        """The time since the work began, in words."""
        return f"{self.seconds:.0f} s"

    def say(self, line: str) -> None:
        """Print a line."""
        self._last = self._clock()
        self._write(line)

    def now_and_then(self, line: str, *, in_any_case: bool = False) -> None:
        """Print a line of results, unless the last one was printed only a few seconds ago."""
        if in_any_case or self._clock() - self._last_result > SECONDS_BETWEEN_LINES:
            self._last_result = self._clock()
            self.say(line)

    @contextmanager
    def doing(self, text: str, total: int = 0) -> Iterator[Step]:
        """Show a step in every line until the block ends; see :class:`Step`."""
        step = Step(text, self._clock, total)
        self._steps.append(step)
        try:
            yield step
        finally:
            # Not always the last: a generator that was not exhausted is closed late.
            self._steps = [other for other in self._steps if other is not step]

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left of the outermost step with an estimate; None without one."""
        steps = list(self._steps)
        for index, (step, fraction) in enumerate(zip(steps, _fractions(steps), strict=True)):
            if fraction:
                # As it was when something was last done: waiting since then brings the end nearer.
                seen = max(inner.changed for inner in steps[index:])
                left = step.started + (seen - step.started) / fraction - self._clock()
                return left if left >= 0 else None  # work that is overdue may take any time
        return None

    def __str__(self) -> str:
        """Return the current steps, the time so far, and the estimated time left."""
        left = self.seconds_left
        doing = ": ".join(str(step) for step in list(self._steps)) or "working"
        rest = "" if left is None else f", about {duration(left)} left"
        return f"{doing}; {duration(self.seconds)} so far{rest}"

    def beat(self) -> None:
        """Print a line if nothing was printed for long, and standard output can take it: a disk may be full."""
        if self._clock() - self._last >= LONGEST_SILENCE:
            with suppress(OSError):
                self.say(str(self))

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Print progress from a thread during the block, whatever this thread waits for or computes."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SECONDS_PER_BEAT):
                self.beat()

        thread = threading.Thread(target=watch, name="fedstats-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _fractions(steps: list[Step]) -> list[float]:
    """Return the fraction done of each step, including the step within it."""
    fractions, inner = [], 0.0
    for step in reversed(steps):
        inner = min((step.done + inner) / step.total, 1.0) if step.total else 0.0
        fractions.append(inner)
    return fractions[::-1]
