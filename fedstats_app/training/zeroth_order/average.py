"""The server's side: its log; scalars averaged, cut where they are out of all proportion, watched for divergence."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, get_args

from fedstats_app.training.zeroth_order.log import Update

Weighting = Literal["examples", "uniform"]

# Scalars whose median size is the measure for those to come.
SCALARS_REMEMBERED = 1000
# Training has diverged when for so many rounds the median size is so many times that of the first rounds.
EXPLOSION, EXPLODED_ROUNDS, FIRST_ROUNDS = 1e4, 5, 10

# For the learning rate: how much larger than the median of the last rounds, at least so many, a mean may be.
GROWTH, ROUNDS_NEEDED, ROUNDS_REMEMBERED = 8.0, 5, 50


class TrainingDiverged(RuntimeError):
    """The parameters or the difference quotients have grown beyond use."""


class UpdateLog(Sequence[Update]):
    """The updates of rounds 1, 2, ..., T in their order.

    Parameters
    ----------
    num_directions : int
        Steps of every update.
    updates : iterable of Update
        Those of the first rounds.

    Raises
    ------
    ValueError
        If an update has another number of steps.
    """

    def __init__(self, num_directions: int, updates: Sequence[Update] = ()) -> None:
        if num_directions < 1:
            raise ValueError(f"num_directions must be at least 1, got {num_directions}")
        self.num_directions = num_directions
        self._updates: list[Update] = []
        for update in updates:
            self.append(update)

    def append(self, update: Update) -> None:
        """Add the next round's update."""
        if len(update.steps) != self.num_directions:
            raise ValueError(f"an update must have {self.num_directions} step(s), got {len(update.steps)}")
        self._updates.append(update)

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # overloads would say less than Sequence does
        """Return the update of round ``index + 1``, or those of a slice."""
        return self._updates[index]


class Measured(Protocol):
    """A client's answer."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """One per direction."""

    @property
    def num_examples(self) -> int:
        """Samples that they are means over."""


class ScalarAverage:
    """Averages one round's scalars after another.

    Parameters
    ----------
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average.
    clip : float
        A scalar larger than this times the median size of the last thousand (those of its own round included) is cut to
        that; 0 for never.

    Raises
    ------
    ValueError
        If an option has another value.
    """

    def __init__(self, weighting: Weighting = "examples", clip: float = 100.0) -> None:
        if weighting not in get_args(Weighting) or not 0.0 <= clip < math.inf:
            raise ValueError(
                f"weighting must be one of {', '.join(get_args(Weighting))} and clip at least 0, "
                f"got {weighting!r} and {clip}"
            )
        self.weighting, self.clip = weighting, clip
        self._sizes: deque[float] = deque(maxlen=SCALARS_REMEMBERED)
        self._first: list[float] = []
        self._exploded = 0

    def mean(self, answers: Mapping[int, Measured]) -> list[float]:
        """Return the weighted mean of every scalar, summed exactly: the order of the clients does not matter."""
        return self._mean((one.scalars, one.num_examples) for one in answers.values())

    def _mean(self, measured: Iterable[tuple[tuple[float, ...], int]]) -> list[float]:
        scalars, counts = zip(*measured, strict=True)
        weights = [float(count) if self.weighting == "examples" else 1.0 for count in counts]
        total, columns = math.fsum(weights), zip(*scalars, strict=True)
        return [
            math.fsum(weight * value for weight, value in zip(weights, column, strict=True)) / total
            for column in columns
        ]

    def take(self, answers: Mapping[int, Measured]) -> tuple[list[float], tuple[int, ...]]:
        """Return the mean of a round's scalars, and the clients of which some were cut.

        Raises
        ------
        TrainingDiverged
            If they have been far larger than in the first rounds for some rounds now.
        """
        sizes = [abs(value) for answer in answers.values() for value in answer.scalars]
        limit = self.clip * statistics.median([*self._sizes, *sizes]) if self.clip else math.inf
        self._watch(statistics.median(sizes))
        self._sizes.extend(min(size, limit) for size in sizes)
        within = {
            client: tuple(max(-limit, min(limit, value)) for value in answer.scalars)
            for client, answer in answers.items()
        }
        means = self._mean((within[client], answer.num_examples) for client, answer in answers.items())
        return means, tuple(client for client, answer in answers.items() if within[client] != answer.scalars)

    def _watch(self, size: float) -> None:
        if len(self._first) < FIRST_ROUNDS:
            self._first.append(size)
            return
        self._exploded = self._exploded + 1 if size > EXPLOSION * statistics.median(self._first) else 0
        if self._exploded >= EXPLODED_ROUNDS:
            raise TrainingDiverged(
                f"for {EXPLODED_ROUNDS} rounds the clients' difference quotients were over {EXPLOSION:g} times those "
                "of the first rounds; choose a smaller learning rate"
            )


class RateGuard:
    """Halves the learning rate when the averaged scalars suddenly grow.

    The slope along a random direction is about normal, with the gradient's length as its deviation: that it is eight
    times its median size is a sign that the last steps were too long, not chance (more than 5 deviations, once in ten
    million rounds). The step is then also cut to that size.

    Attributes
    ----------
    cuts : int
        How often so far.
    """

    def __init__(self) -> None:
        self._sizes: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)
        self.cuts = 0

    def take(self, means: list[float]) -> tuple[list[float], bool]:
        """Return a round's means, cut if need be, and whether the learning rate is to be halved from here on."""
        size = math.sqrt(math.fsum(mean * mean for mean in means) / len(means))
        limit = GROWTH * statistics.median(self._sizes) if len(self._sizes) >= ROUNDS_NEEDED else math.inf
        grown = size > limit > 0.0
        self._sizes.append(min(size, limit) if limit > 0.0 else size)
        if not grown:
            return means, False
        self.cuts += 1
        return [mean * (limit / size) for mean in means], True
