"""The automatic learning rate, lowered where steps turn out too long, and raised again after."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

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
