"""The learning rate: one that was given stays; one that was found is halved where steps are too long, for a while."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from fedstats_app.fedmezo.log import Update

# How much larger than the median of the last rounds, at least so many, a mean may be.
GROWTH, ROUNDS_NEEDED, ROUNDS_REMEMBERED = 8.0, 5, 50
# So many rounds without growth before the rate is doubled again, twice as many if it was then halved once more.
CALM_ROUNDS = 50
# Steps are kept in a log, from which sizes come back to within rounding: what was cut counts as grown again.
_ROUNDING = 1e-6


class RateGuard:
    """Halves the learning rate when the averaged scalars suddenly grow, and takes that back when all is calm.

    The slope along a random direction is about normal, with the gradient's length as its deviation: that it is eight
    times its median size is no chance (more than 5 deviations, once in ten million rounds). Either the last steps were
    too long, or it is a spike. The step is cut to that size and the rate halved at once, for steps that are too long
    ruin a model within a few rounds; a spike costs half the rate for fifty rounds and no more.

    Attributes
    ----------
    halvings : int
        How often it was halved and not doubled since.
    """

    def __init__(self) -> None:
        self._sizes: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)
        self._calm = 0
        self._needed = CALM_ROUNDS
        self._raised = False
        self.halvings = 0

    def take(self, means: Sequence[float]) -> tuple[tuple[float, ...], float]:
        """Return a round's means, cut if need be, and what the learning rate is multiplied by from here on.

        Parameters
        ----------
        means : sequence of float
            One per direction.

        Returns
        -------
        tuple of float
            The means to step by.
        float
            0.5, 1 or 2.
        """
        size = math.sqrt(math.fsum(mean * mean for mean in means) / len(means))
        limit = GROWTH * statistics.median(self._sizes) if len(self._sizes) >= ROUNDS_NEEDED else math.inf
        grown = limit > 0.0 and size > limit * (1.0 - _ROUNDING)
        # In single precision, in which a log gives sizes back: a training that was interrupted goes on alike.
        self._sizes.append(float(np.float32(min(size, limit) if limit > 0.0 else size)))
        kept = tuple(mean * (limit / size) for mean in means) if grown else tuple(means)
        return kept, self._change(grown)

    def _change(self, grown: bool) -> float:
        if grown:
            self._calm = 0
            # Raised too early: wait longer the next time.
            self._needed *= 2 if self._raised else 1
            self._raised = False
            self.halvings += 1
            return 0.5
        self._calm += 1
        if not self.halvings or self._calm < self._needed:
            return 1.0
        self.halvings -= 1
        self._calm, self._raised = 0, True
        return 2.0


class LearningRate:
    """What averaged scalars are multiplied by to become steps.

    Parameters
    ----------
    value : float, optional
        None for as long as it is not known.
    guarded : bool
        Whether a :class:`RateGuard` may change it; else it never changes, nor do the scalars.
    rates : mapping
        To go on from: :attr:`rates` as it was.
    log : sequence of Update
        To go on from: what the rate was judged by.

    Attributes
    ----------
    value : float or None
        As it is now.
    rates : dict
        From every round in which it was changed to what it was from there on.

    Raises
    ------
    ValueError
        If it is not positive and finite.
    """

    def __init__(
        self, value: float | None, *, guarded: bool, rates: Mapping[int, float], log: Sequence[Update]
    ) -> None:
        if value is not None and not 0.0 < value < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {value}")
        self.value, self.rates = value, dict(rates)
        self._guard = RateGuard() if guarded else None
        if self.value is not None and self._guard is not None:
            for number, update in enumerate(log, start=1):
                self.value = self.rates.get(number, self.value)
                if any(update.steps):
                    self._guard.take([step * len(update.steps) / self.value for step in update.steps])

    def steps(self, server_round: int, means: tuple[float, ...]) -> tuple[float, ...]:
        """Return rate / P times a round's P means, which a guard may cut, and note a change of the rate.

        Raises
        ------
        ValueError
            If the rate is not known.
        """
        if self.value is None:
            raise ValueError("the learning rate is not known yet: measure_learning_rate finds one")
        if self._guard is not None and any(means):
            means, change = self._guard.take(means)
            if change != 1.0:
                self.value = self.rates[server_round] = change * self.value
        return tuple(self.value / len(means) * mean for mean in means)
