"""Rounds of training: who takes part in each, and the loop that FineTuning and FedMeZO share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.strategies.base import OwnRounds

# Keeps the draw of a training round's clients apart from every other draw by (seed, number).
SAMPLING_STREAM = 0x7EA1

R = TypeVar("R")


class SampledTraining(OwnRounds, Generic[R]):
    """Rounds of training over clients drawn by (seed, round), so that an interrupted run continues as it would have.

    Flower's own loop counts from 1 and cannot be stopped, so :meth:`rounds` replaces it.

    Parameters
    ----------
    clients : mapping
        From the clients that can take part to their number of samples, None where it is not known.
    fraction : float
        Share of them that takes part in a round, in (0, 1]; at least one does.
    min_clients : int
        Usable answers that a round needs, or all that were asked, if these are fewer; at least one.
    seed : int
        Of the draw, with the round.

    Attributes
    ----------
    outcome : R
        The last round.

    Raises
    ------
    ValueError
        If the fraction has another value.
    """

    usual_rounds: ClassVar[int] = 3
    first_round: int
    outcome: R

    def __init__(self, clients: Mapping[int, int | None], fraction: float, min_clients: int, seed: int) -> None:
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction}")
        self.clients, self.fraction, self.min_clients, self._seed = dict(clients), fraction, min_clients, seed

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds and return Flower's Result.

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`ClientGrid`.
        initial_arrays : ArrayRecord, optional
            To start from. FedMeZO without any starts from its model as it is, and continues in a later call.
        num_rounds : int, optional
            How many, from ``first_round`` on; by default 3, of FedMeZO 100.
        timeout : float, optional
            Seconds for each exchange, beside the limit of every request; none by default.
        train_config : ConfigRecord, optional
            Further entries of the config that clients get; a node of FedMeZO keeps the setup.
        evaluate_config : ConfigRecord, optional
            As of :meth:`StatisticsStrategy.start`: with it clients evaluate after each round.
        evaluate_fn : callable, optional
            As Flower's, with absolute rounds.

        Raises
        ------
        ValueError
            If the arrays are not those of FedMeZO's model.
        TooFewClients
            If there are no clients, or a round, or ten of FedMeZO in a row, has too few usable answers.
        TrainingDiverged
            By FedMeZO.
        """
        grid, result = self.prepare(grid, initial_arrays), Result(arrays=initial_arrays or ArrayRecord())
        outcomes = self.rounds(grid, result, num_rounds or self.usual_rounds, timeout, train_config)
        for number, _ in enumerate(outcomes, self.first_round):
            scores = evaluate_fn(number, self.shown(result.arrays)) if evaluate_fn is not None else None
            if scores is not None:
                result.evaluate_metrics_serverapp[number] = scores
            if evaluate_config is not None:
                self.evaluate(result, number, self.shown(result.arrays), evaluate_config, grid)
        result.arrays = self.shown(result.arrays)
        self.finish(grid, timeout)
        return result

    def rounds(
        self,
        grid: Grid,
        result: Result,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
    ) -> Iterator[R]:
        """Yield every round as it ends; parameters and errors are those of :meth:`start`.

        ``result`` has the arrays to start from, and takes those of each round and its metrics.
        """
        if not self.clients:
            raise TooFewClients("no client can train")
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        self.begin(grid, timeout)
        first, config = self.first_round, train_config or ConfigRecord()
        last = first + num_rounds - 1
        with grid.silences.forgotten_afterwards(), grid.progress.doing("training", num_rounds) as step:
            for number in range(first, last + 1):
                step.at(number - first, f"round {number} of {last}")
                messages = self.configure_train(number, result.arrays, config, grid)
                arrays, metrics = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
                result.arrays = arrays or result.arrays
                if metrics is not None:
                    result.train_metrics_clientapp[number] = metrics
                yield self.outcome
                if self.is_last():
                    break

    def prepare(self, grid: Grid, initial_arrays: ArrayRecord | None) -> Grid:
        """Take the arrays that :meth:`start` was given, and return the Grid for all that follows."""
        return grid

    def begin(self, grid: ClientGrid, timeout: float | None) -> None:
        """Ask clients before the first round."""

    def finish(self, grid: Grid, timeout: float | None) -> None:
        """Ask clients after the last round of :meth:`start`."""

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays for ``evaluate_fn`` and the Result, by default those averaged last."""
        return arrays

    def is_last(self) -> bool:
        """Return whether training ends with the round that has ended."""
        return False

    def participants(self, server_round: int) -> list[int]:
        """Draw the clients of a round without replacement by (seed, round); ascending."""
        ordered = sorted(self.clients)
        size = max(1, round(self.fraction * len(ordered)))
        if size >= len(ordered):
            return ordered
        draw = np.random.default_rng([self._seed, SAMPLING_STREAM, server_round])
        return sorted(int(client) for client in draw.choice(np.array(ordered, dtype=object), size, replace=False))

    def begin_round(self, grid: Grid, server_round: int) -> list[int]:
        """Draw the clients of a round; those that were silent before rest, unless the others are too few."""
        drawn = self.participants(server_round)
        if isinstance(grid, ClientGrid):
            grid.silences.next_round()
            resting = [client for client in drawn if grid.silences.rests(client)]
            if len(drawn) - len(resting) < self.needed(len(drawn)):
                grid.silences.wake(resting)
        return drawn

    def needed(self, num_asked: int) -> int:
        """Compute the number of usable answers that is enough."""
        return max(1, min(self.min_clients, num_asked))
