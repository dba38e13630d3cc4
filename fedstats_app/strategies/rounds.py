"""Rounds of training: who takes part in each, and the loop that FineTuning and FedMeZO share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.strategies.base import WithoutEvaluation

# Keeps the draw of a training round's clients apart from every other draw by (seed, number).
SAMPLING_STREAM = 0x7EA1


class SampledTraining(WithoutEvaluation):
    """Rounds of training over clients drawn by (seed, round), so that an interrupted run goes on as it would have.

    Flower's own loop counts from 1 and cannot be stopped, so :meth:`start` has one of its own.

    Parameters
    ----------
    clients : mapping
        From the clients that can take part to their number of samples, None where it is not known.
    fraction : float
        Share of them that takes part in a round, in (0, 1]; at least one does.
    min_clients : int
        Usable answers that a round needs, or all that were asked, if these are fewer; at least one.
    seed : int
        What the draw depends on, beside the round.

    Raises
    ------
    ValueError
        If the fraction has another value.
    """

    first_round: int

    def __init__(self, clients: Mapping[int, int | None], fraction: float, min_clients: int, seed: int) -> None:
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction}")
        self.clients, self.fraction, self.min_clients, self._seed = dict(clients), fraction, min_clients, seed

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
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
            What is trained; FedMeZO's constructor has it.
        num_rounds : int
            How many, from ``first_round`` on.
        timeout : float, optional
            Seconds for each exchange, beside the limit of every request; none by default.
        train_config : ConfigRecord, optional
            Further entries of the config that clients get; a node of FedMeZO keeps the setup.
        evaluate_config : ConfigRecord, optional
            Not used.
        evaluate_fn : callable, optional
            As Flower's, with absolute rounds.

        Raises
        ------
        TooFewClients
            If there are no clients, or a round, or ten of FedMeZO in a row, has too few usable answers.
        TrainingDiverged
            By FedMeZO.
        """
        if not self.clients:
            raise TooFewClients("no client can train")
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        self.begin(grid, timeout)
        result, config = Result(arrays=initial_arrays or ArrayRecord()), train_config or ConfigRecord()
        first = self.first_round
        last = first + num_rounds - 1
        with grid.silences.forgotten_afterwards(), grid.progress.doing("training", num_rounds) as step:
            for number in range(first, last + 1):
                step.at(number - first, f"round {number} of {last}")
                messages = self.configure_train(number, result.arrays, config, grid)
                arrays, metrics = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
                if arrays is not None:
                    result.arrays = arrays
                if metrics is not None:
                    result.train_metrics_clientapp[number] = metrics
                scores = evaluate_fn(number, self.shown(result.arrays)) if evaluate_fn is not None else None
                if scores is not None:
                    result.evaluate_metrics_serverapp[number] = scores
                if self.is_last():
                    break
        result.arrays = self.shown(result.arrays)
        return result

    def begin(self, grid: ClientGrid, timeout: float | None) -> None:
        """Ask what is to be known before the first round."""

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """Choose what ``evaluate_fn`` and the Result get: by default what was averaged last."""
        return arrays

    @abstractmethod
    def is_last(self) -> bool:
        """Report a round that has ended; whether training ends with it."""

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
        """Compute how many usable answers are enough if so many clients were asked."""
        return max(1, min(self.min_clients, num_asked))
