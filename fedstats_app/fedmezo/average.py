"""The server's side: the weighted average of the clients' scalars, none of which exceeds a limit."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Weighting = Literal["examples", "uniform"]

# Scalars whose median size is the measure for those to come.
SCALARS_REMEMBERED = 1000
# Training has diverged if in this many rounds the median size is this many times that of the first rounds.
EXPLOSION, EXPLODED_ROUNDS, FIRST_ROUNDS = 1e4, 5, 10


class TrainingDiverged(RuntimeError):
    """The parameters or the difference quotients have grown beyond use."""


class Measured(Protocol):
    """A client's answer."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """One per direction."""

    @property
    def num_examples(self) -> int:
        """Samples that they are means over."""


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
        Of all scalars as they came.
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
        self._first: list[float] = []
        self._exploded = 0

    def mean(self, scalars: Mapping[int, Sequence[float]], num_examples: Mapping[int, int]) -> tuple[float, ...]:
        """Return the weighted mean of each scalar over clients.

        Sums are exact: the order of the clients does not matter.
        """
        weights = [float(num_examples[client]) if self.weighting == "examples" else 1.0 for client in scalars]
        columns = zip(*scalars.values(), strict=True)
        sums = [math.fsum(w * value for w, value in zip(weights, column, strict=True)) for column in columns]
        total = math.fsum(weights)
        return tuple(one / total for one in sums)

    def take(self, answers: Mapping[int, Measured]) -> Averaged:
        """Average the scalars of a round with at least one answer.

        Raises
        ------
        TrainingDiverged
            If they have been far larger than in the first rounds for some rounds now.
        """
        sizes = tuple(abs(value) for answer in answers.values() for value in answer.scalars)
        limit = self.limit(sizes)
        within = {
            client: tuple(max(-limit, min(limit, value)) for value in answer.scalars)
            for client, answer in answers.items()
        }
        clipped = tuple(client for client, answer in answers.items() if within[client] != answer.scalars)
        num_examples = {client: answer.num_examples for client, answer in answers.items()}
        return Averaged(self.mean(within, num_examples), clipped, sizes)

    def limit(self, sizes: Sequence[float]) -> float:
        """Return the limit on a round's scalars of these sizes, and remember them; errors as :meth:`take`."""
        limit = self.clip * statistics.median([*self._sizes, *sizes]) if self.clip else math.inf
        self._sizes.extend(min(size, limit) for size in sizes)
        median = statistics.median(sizes)
        if len(self._first) < FIRST_ROUNDS:
            self._first.append(median)
            return limit
        self._exploded = self._exploded + 1 if median > EXPLOSION * statistics.median(self._first) else 0
        if self._exploded >= EXPLODED_ROUNDS:
            raise TrainingDiverged(
                f"for {EXPLODED_ROUNDS} rounds the clients' difference quotients were over {EXPLOSION:g} times those "
                "of the first rounds; choose a smaller learning rate"
            )
        return limit
