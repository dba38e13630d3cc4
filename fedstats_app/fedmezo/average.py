"""Weighted average of the clients' scalars on the server, each cut to a limit."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Weighting = Literal["examples", "uniform"]

# Scalars whose median size limits later ones.
SCALARS_REMEMBERED = 1000


class TrainingDiverged(RuntimeError):
    """The parameters are not finite, or no learning rate can be found."""


@dataclass(frozen=True)
class Averaged:
    """Result of one round's scalars.

    Attributes
    ----------
    means : tuple of float
        One per direction.
    clipped : tuple of int
        Clients that had a scalar above the limit.
    sizes : tuple of float
        Absolute values of all scalars before they were cut.
    """

    means: tuple[float, ...] = ()
    clipped: tuple[int, ...] = ()
    sizes: tuple[float, ...] = ()


class ScalarAverage:
    """Averages the scalars of one round after another.

    Parameters
    ----------
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average.
    clip : float
        A scalar larger than this times the median size of the last thousand (those of its own round included) is cut to
        that; 0 for never. A ValueError refuses a negative one.
    """

    def __init__(self, weighting: Weighting = "examples", clip: float = 3.0) -> None:
        if weighting not in ("examples", "uniform"):
            raise ValueError(f"weighting must be examples or uniform, got {weighting!r}")
        if not clip >= 0.0:
            raise ValueError(f"clip must be at least 0, got {clip}")
        self.weighting, self.clip = weighting, clip
        self._sizes: deque[float] = deque(maxlen=SCALARS_REMEMBERED)

    def mean(self, scalars: Mapping[int, Sequence[float]], num_examples: Mapping[int, int]) -> tuple[float, ...]:
        """Return the weighted mean of each scalar over clients.

        Sums are exact: the order of the clients does not matter.
        """
        weights = [float(num_examples[client]) if self.weighting == "examples" else 1.0 for client in scalars]
        columns = zip(*scalars.values(), strict=True)
        sums = [math.fsum(w * value for w, value in zip(weights, column, strict=True)) for column in columns]
        total = math.fsum(weights)
        return tuple(value / total for value in sums)

    def take(self, scalars: Mapping[int, Sequence[float]], num_examples: Mapping[int, int]) -> Averaged:
        """Average the scalars of a round with at least one answer."""
        sizes = tuple(abs(value) for values in scalars.values() for value in values)
        limit = self.limit(sizes)
        cut = {client: [max(-limit, min(limit, value)) for value in values] for client, values in scalars.items()}
        clipped = tuple(client for client, values in scalars.items() if any(abs(value) > limit for value in values))
        return Averaged(self.mean(cut, num_examples), clipped, sizes)

    def limit(self, sizes: Sequence[float]) -> float:
        """Return the limit on a round's scalars of these sizes, and remember them."""
        limit = self.clip * statistics.median([*self._sizes, *sizes]) if self.clip else math.inf
        self._sizes.extend(min(size, limit) for size in sizes)
        return limit
