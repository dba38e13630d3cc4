"""The server's side: scalars averaged without those out of all proportion, watched for divergence."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from fedstats_app.training.proportion import allowances, usual_size

Weighting = Literal["examples", "uniform"]

# Scalars whose median size is the measure for those to come.
SCALARS_REMEMBERED = 1000
# Rounds in which clients' sizes are compared.
ROUNDS_COMPARED = 100
# Training has diverged when for so many rounds the median size is so many times that of the first rounds.
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
    """What came of one round's scalars.

    Attributes
    ----------
    means : tuple of float
        One per direction; empty if no client is left.
    clipped : tuple of int
        Clients of which some were cut.
    left_out : dict
        From every client that is out of proportion to how many times the usual size its scalars are.
    times : dict
        The same of all clients; empty where the usual size is 0.
    """

    means: tuple[float, ...]
    clipped: tuple[int, ...]
    left_out: Mapping[int, float]
    times: Mapping[int, float]


class ScalarAverage:
    """Averages one round's scalars after another, without clients that are out of all proportion.

    Along random directions a client's slopes are about normal, with the length of its gradient as their deviation. So a
    client's size is the root mean square of its scalars of the last hundred rounds, and the usual one is the upper
    quartile over clients, :func:`~fedstats_app.training.proportion.usual_size`.

    Parameters
    ----------
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average.
    clip : float
        A scalar larger than this times the median size of the last thousand (those of its own round included) is cut to
        that; 0 for never.
    outlier : float
        A client whose gradient is longer than this times the usual one is left out; 0 for never. Of m scalars it takes
        1 + 4 / sqrt(m) times as much, which chance exceeds about once in a million times. A client with few samples,
        n_k of n on average, may be n / n_k times as large.

    Raises
    ------
    ValueError
        If an option has another value.
    """

    def __init__(self, weighting: Weighting = "examples", clip: float = 100.0, outlier: float = 3.0) -> None:
        if weighting not in get_args(Weighting) or not 0.0 <= clip < math.inf or not 0.0 <= outlier < math.inf:
            raise ValueError(
                f"weighting must be one of {', '.join(get_args(Weighting))}, clip and outlier at least 0, "
                f"got {weighting!r}, {clip} and {outlier}"
            )
        self.weighting, self.clip, self.outlier = weighting, clip, outlier
        # Of every round, each client's mean square and how many scalars it is of.
        self._rounds: deque[dict[int, tuple[float, int]]] = deque(maxlen=ROUNDS_COMPARED)
        self._scalars: deque[float] = deque(maxlen=SCALARS_REMEMBERED)
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

    def take(self, answers: Mapping[int, Measured]) -> Averaged:
        """Return the mean of a round's scalars, and the clients that were left out or of which some were cut.

        Raises
        ------
        TrainingDiverged
            If they have been far larger than in the first rounds for some rounds now.
        """
        counts = {client: one.num_examples if self.weighting == "examples" else 1 for client, one in answers.items()}
        allowed = allowances(counts, steps=False)
        excesses = self._compare(answers, allowed)
        left_out = {client: times for client, times in excesses.items() if times > self.outlier > 0.0}
        answers = {client: answer for client, answer in answers.items() if client not in left_out}
        if not answers:
            return Averaged((), (), left_out, excesses)
        scalars = [abs(value) for answer in answers.values() for value in answer.scalars]
        limit = self.clip * statistics.median([*self._scalars, *scalars]) if self.clip else math.inf
        self._watch(statistics.median(scalars))
        self._scalars.extend(min(size, limit) for size in scalars)
        within = {
            client: tuple(max(-limit, min(limit, value)) for value in answer.scalars)
            for client, answer in answers.items()
        }
        means = self._mean((within[client], answer.num_examples) for client, answer in answers.items())
        cut = tuple(client for client, answer in answers.items() if within[client] != answer.scalars)
        return Averaged(tuple(means), cut, left_out, excesses)

    def _compare(self, answers: Mapping[int, Measured], allowed: Mapping[int, float]) -> dict[int, float]:
        """Note a round; return each client's size in usual ones, over what is allowed and what chance does.

        That is of this round, or of all that are remembered if these are larger.
        """
        now = {client: (_mean_square(answer.scalars), len(answer.scalars)) for client, answer in answers.items()}
        self._rounds.append(now)
        sizes = self._sizes()
        usual = usual_size(size for size, _ in sizes.values())
        if usual == 0.0:
            return {}
        excesses = {
            client: max(
                size / _by_chance(number)
                for size, number in ((math.sqrt(now[client][0]), now[client][1]), sizes[client])
            )
            / (usual * allowed[client])
            for client in answers
        }
        # What is remembered of a client is bounded, so that a single spike is forgotten after some rounds.
        if self.outlier:
            most = {client: 2.0 * self.outlier * _by_chance(1) * usual * allowed[client] for client in answers}
            self._rounds[-1] = {
                client: (min(square, most[client] ** 2), number) for client, (square, number) in now.items()
            }
        return excesses

    def _sizes(self) -> dict[int, tuple[float, int]]:
        """Return each client's root mean square in the rounds that are remembered, and of how many scalars it is."""
        sums: dict[int, tuple[float, int]] = {}
        for one in self._rounds:
            for client, (square, number) in one.items():
                total, count = sums.get(client, (0.0, 0))
                sums[client] = (total + number * square, count + number)
        return {client: (math.sqrt(total / count), count) for client, (total, count) in sums.items()}

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


def _mean_square(values: tuple[float, ...]) -> float:
    return math.fsum(value * value for value in values) / len(values)


def _by_chance(count: int) -> float:
    """Return what the root mean square of so many standard normal numbers exceeds once in a million times."""
    return 1.0 + 4.0 / math.sqrt(count)
