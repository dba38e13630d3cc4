"""How long each part of a run took."""

from __future__ import annotations

from collections.abc import Callable


class Phases:
    """Seconds by phase, one after the other.

    Parameters
    ----------
    clock : callable
        Returns the seconds since the run began, when the first phase does.

    Attributes
    ----------
    seconds : dict
        From every phase that has ended to its length.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._begun = 0.0

    def end(self, phase: str) -> None:
        """End a phase, which began where the one before it ended."""
        now = self._clock()
        self.seconds[phase] = round(now - self._begun, 3)
        self._begun = now
