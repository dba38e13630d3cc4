"""What the Strategies have in common: no evaluation of Flower's kind, and who takes part in a round of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients

# Keeps the draw of a training round's clients apart from every other draw by (seed, number).
SAMPLING_STREAM = 0x7EA1


class WithoutEvaluation(Strategy):
    """A Strategy whose rounds only train: heads and models are scored by messages of :mod:`fedstats_app.grid`."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing."""
        return None


class SampledTraining(WithoutEvaluation):
    """Rounds of training over clients drawn by (seed, round), so that an interrupted run goes on as it would have.

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
    TooFewClients
        If there are no clients.
    ValueError
        If the fraction has another value.
    """

    def __init__(self, clients: Mapping[int, int | None], fraction: float, min_clients: int, seed: int) -> None:
        if not clients:
            raise TooFewClients("no client can train")
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], got {fraction}")
        self.clients, self.fraction, self.min_clients, self._seed = dict(clients), fraction, min_clients, seed

    def participants(self, server_round: int) -> list[int]:
        """Return the clients of a round, ascending, drawn without replacement by (seed, round)."""
        ordered = sorted(self.clients)
        size = max(1, round(self.fraction * len(ordered)))
        if size >= len(ordered):
            return ordered
        draw = np.random.default_rng([self._seed, SAMPLING_STREAM, server_round])
        return sorted(int(client) for client in draw.choice(np.array(ordered, dtype=object), size, replace=False))

    def begin_round(self, grid: Grid, server_round: int) -> list[int]:
        """Return the clients of a round, in which those that were silent before rest, unless the others are too few."""
        drawn = self.participants(server_round)
        if isinstance(grid, ClientGrid):
            grid.silences.next_round()
            resting = [client for client in drawn if grid.silences.rests(client)]
            if len(drawn) - len(resting) < self.needed(len(drawn)):
                grid.silences.wake(resting)
        return drawn

    def needed(self, num_asked: int) -> int:
        """Return how many usable answers are enough where so many clients were asked."""
        return max(1, min(self.min_clients, num_asked))
