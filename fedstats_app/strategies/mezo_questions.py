"""What FedMeZO asks beside its rounds: temperature, learning rate, digests; and who alone would decide these."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Callable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedstats_app.fedmezo.average import ScalarAverage, TrainingDiverged
from fedstats_app.fedmezo.measures import TEMPERATURES, best_temperature
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.mezo_exchange import Asked, MezoExchange
from fedstats_app.strategies.rounds import SampledTraining
from fedstats_app.training.proportion import DECIDES, deciding
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, MezoReply, Wanted

# Of 1 / (trace of the Hessian): a quadratic loss falls for steps up to 2 / (tr H + 2 lambda_max), which is less than
# that wherever one direction bends much more than the others.
CURVATURE_SAFETY = 0.5


class MezoQuestions(SampledTraining):
    """Questions to all clients that are no rounds.

    Parameters
    ----------
    clients, fraction, min_clients, seed
        As :class:`SampledTraining`.
    exchange : MezoExchange
        What asks.
    average : ScalarAverage
        How answers are averaged.

    """

    @property
    @abstractmethod
    def learning_rate(self) -> float | None:
        """None for as long as it is not known."""

    @learning_rate.setter
    @abstractmethod
    def learning_rate(self, value: float) -> None: ...

    def __init__(
        self,
        clients: Mapping[int, int | None],
        fraction: float,
        min_clients: int,
        seed: int,
        *,
        exchange: MezoExchange,
        average: ScalarAverage,
    ) -> None:
        super().__init__(clients, fraction, min_clients, seed)
        self._exchange, self._average = exchange, average

    def measure_learning_rate(self, grid: Grid, timeout: float | None = None) -> Asked:
        """Ask every client for the loss's curvature along a few directions, and set the learning rate.

        It is half of 1 / (mean curvature): directions of independent signs or standard normal numbers see the trace of
        the Hessian.

        Raises
        ------
        TooFewClients
            If too few answer.
        TrainingDiverged
            If the loss is flat, or falls away, along all of them.
        """
        asked = self._ask(grid, "curvature", CURVATURE_DIRECTIONS, timeout)
        self._require_enough(asked, "the loss's curvature")
        curvature = self._agreed(asked, lambda answers: statistics.fmean(self._average.mean(answers)))
        if not curvature > 0.0:
            raise TrainingDiverged(
                f"the loss's curvature along {CURVATURE_DIRECTIONS} directions is {curvature:g}, from which no "
                "learning rate follows: give one (fedmezo@learning-rate), or a start that is less sure "
                "(fedmezo@temperature)"
            )
        self.learning_rate = CURVATURE_SAFETY / curvature
        return asked

    def measure_temperature(self, grid: Grid, timeout: float | None = None) -> tuple[float, Asked]:
        """Ask every client for its loss with the start's logits divided by some temperatures, and return the best.

        Raises
        ------
        TooFewClients
            If too few answer.
        """
        losses, asked = self.measure_losses(grid, timeout)
        return best_temperature(losses), asked

    def measure_losses(self, grid: Grid, timeout: float | None = None) -> tuple[list[float], Asked]:
        """Ask as :meth:`measure_temperature`; return the mean loss in nats at each of ``TEMPERATURES``.

        Raises
        ------
        TooFewClients
            If too few answer.
        """
        asked = self._ask(grid, "temperature", len(TEMPERATURES), timeout)
        self._require_enough(asked, "losses by temperature")
        self._agreed(asked, lambda answers: best_temperature(self._average.mean(answers)))
        counted = {client: answer for client, answer in asked.with_samples.items() if client not in asked.failures}
        return self._average.mean(counted), asked

    def _agreed(self, asked: Asked, estimate: Callable[[Mapping[int, MezoReply]], float]) -> float:
        """Return an estimate from all answers but those of clients that alone decide it, which become failures."""
        answers = asked.with_samples
        for client in deciding(answers, estimate) if self._average.outlier else ():
            asked.failures[client] = f"without it the others agree on over {DECIDES:g} times more or less"
            del answers[client]
        return estimate(answers)

    def synchronise(self, grid: Grid, timeout: float | None = None) -> Asked:
        """Bring the replica of every client to the end of the log; those in ``answers`` have the right digest."""
        return self._ask(grid, "sync", 0, timeout)

    def evaluation_messages(self, message_type: str) -> tuple[list[Message], Asked]:
        """Return a message of a type to every client, which brings it to the end of the log, and what that costs."""
        asked = Asked()
        messages = self._exchange.messages(asked, sorted(self.clients), message_type=message_type)
        self._exchange.note_following(self.clients)
        return messages, asked

    def _ask(self, grid: Grid, wanted: Wanted, num_scalars: int, timeout: float | None) -> Asked:
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        return self._exchange.ask(grid, sorted(self.clients), wanted, num_scalars, timeout)

    def _require_enough(self, asked: Asked, what: str) -> None:
        needed = self.needed(len(self.clients))
        if len(asked.with_samples) < needed:
            raise TooFewClients(
                f"{len(asked.with_samples)} of {len(self.clients)} clients measured {what}, {needed} are needed "
                f"(min-clients); {asked.reasons()}"
            )
