"""The server's side: scalars averaged without outliers, and the learning rate that turns them into steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from fedstats_app.fedmezo.log import Update
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
class _Scalars:
    """As :class:`Measured` has it."""

    scalars: tuple[float, ...]
    num_examples: int


@dataclass(frozen=True)
class Averaged:
    """What came of one round's scalars.

    Attributes
    ----------
    means : tuple of float
        One per direction; empty if no client is left.
    clipped : tuple of int
        Clients of which some were cut.
    times : dict
        From every client to how many times the usual size its scalars are; empty if that size is 0. ``left_out`` has
        those that are out of proportion.
    noted : dict
        What is remembered of the round, for JSON: each client's mean square and of how many scalars it is, the sizes of
        those that were averaged, and the median before any was cut. Empty if no round was taken.
    """

    means: tuple[float, ...]
    clipped: tuple[int, ...]
    left_out: Mapping[int, float]
    times: Mapping[int, float]
    noted: Mapping[str, Any] = field(default_factory=dict)


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
    """

    def __init__(self, weighting: Weighting = "examples", clip: float = 3.0, outlier: float = 3.0) -> None:
        self.weighting, self.clip, self.outlier = weighting, clip, outlier
        # Of every round, each client's mean square and how many scalars it is of.
        self._rounds: deque[dict[int, tuple[float, int]]] = deque(maxlen=ROUNDS_COMPARED)
        self._scalars: deque[float] = deque(maxlen=SCALARS_REMEMBERED)
        self._first: list[float] = []
        self._exploded = 0

    def restore(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Remember earlier rounds, in their order, as :class:`Averaged` noted them: what comes next is taken alike."""
        for one in rounds:
            self._rounds.append({int(client): (square, number) for client, (square, number) in one["squares"].items()})
            self._remember(one)

    def mean(self, answers: Mapping[int, Measured]) -> list[float]:
        """Return the weighted mean of every scalar.

        Sums are exact: the order of the clients does not matter.
        """
        weights = [float(one.num_examples) if self.weighting == "examples" else 1.0 for one in answers.values()]
        columns = zip(*(one.scalars for one in answers.values()), strict=True)
        sums = [math.fsum(w * value for w, value in zip(weights, column, strict=True)) for column in columns]
        total = math.fsum(weights)
        return [one / total for one in sums]

    def take(
        self, answers: Mapping[int, Measured], foretold: Mapping[int, tuple[float, ...]] | None = None
    ) -> Averaged:
        """Return the mean of a round's scalars, and the clients that were left out or of which some were cut.

        Where scalars are ``foretold``, one per direction and client, clients are judged and cut by what theirs are away
        from that, and it is that which is remembered.

        Raises
        ------
        TrainingDiverged
            If they have been far larger than in the first rounds for some rounds now.
        """
        foretold = foretold or {}
        answers = {
            client: _Scalars(_plus(one.scalars, foretold.get(client), -1.0), one.num_examples)
            for client, one in answers.items()
        }
        counts = {client: one.num_examples if self.weighting == "examples" else 1 for client, one in answers.items()}
        allowed = allowances(counts, steps=False)
        excesses = self._compare(answers, allowed)
        left_out = {client: times for client, times in excesses.items() if times > self.outlier > 0.0}
        answers = {client: answer for client, answer in answers.items() if client not in left_out}
        noted: dict[str, Any] = {"squares": {str(client): [*one] for client, one in self._rounds[-1].items()}}
        if not answers:
            return Averaged((), (), left_out, excesses, noted)
        scalars = [abs(value) for answer in answers.values() for value in answer.scalars]
        limit = self.clip * statistics.median([*self._scalars, *scalars]) if self.clip else math.inf
        noted |= {"sizes": [min(size, limit) for size in scalars], "median": statistics.median(scalars)}
        self._remember(noted)
        within = {client: _cut(one.scalars, limit) for client, one in answers.items()}
        cut = tuple(client for client, one in answers.items() if within[client] != one.scalars)
        whole = {
            client: _Scalars(_plus(within[client], foretold.get(client), 1.0), one.num_examples)
            for client, one in answers.items()
        }
        return Averaged(tuple(self.mean(whole)), cut, left_out, excesses, noted)

    def _compare(self, answers: Mapping[int, Measured], allowed: Mapping[int, float]) -> dict[int, float]:
        """Note a round; return each client's size in usual ones, over what is allowed and what chance does.

        That is of this round, or of all that are remembered if these are larger.
        """
        squares = {client: [value * value for value in answer.scalars] for client, answer in answers.items()}
        now = {client: (math.fsum(values) / len(values), len(values)) for client, values in squares.items()}
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

    def _remember(self, noted: Mapping[str, Any]) -> None:
        if "sizes" in noted:  # where anybody was averaged
            self._scalars.extend(noted["sizes"])
            self._watch(noted["median"])

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


def _cut(values: tuple[float, ...], limit: float) -> tuple[float, ...]:
    return tuple(max(-limit, min(limit, value)) for value in values)


def _plus(values: tuple[float, ...], others: tuple[float, ...] | None, sign: float) -> tuple[float, ...]:
    return values if others is None else tuple(a + sign * b for a, b in zip(values, others, strict=True))


def _by_chance(count: int) -> float:
    """Return a bound that the root mean square of so many normal numbers exceeds once in a million times."""
    return 1.0 + 4.0 / math.sqrt(count)


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
        """Return a round's means, cut if need be, and by what the learning rate is multiplied now: 0.5, 1 or 2."""
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
        Positive and finite, or a ValueError; None for as long as it is not known.
    guarded : bool
        Whether a :class:`RateGuard` may change it; else it never changes, nor do the scalars.
    rates : mapping
        From every round in which it was changed to what it was from there on.
    log : sequence of Update
        To continue from: what the rate was judged by.
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
        """Return rate / P times a round's P means, which a guard may cut, and note a change of the rate."""
        if self.value is None:
            raise ValueError("the learning rate is not known yet: measure_learning_rate finds one")
        if self._guard is not None and any(means):
            means, change = self._guard.take(means)
            if change != 1.0:
                self.value = self.rates[server_round] = change * self.value
        return tuple(self.value / len(means) * mean for mean in means)
