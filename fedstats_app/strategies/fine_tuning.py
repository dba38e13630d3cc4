"""Stage 2: Flower's own strategies, started from a head, over clients drawn by (seed, round)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedstats_app.grid.asking import Answers, array_bytes, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.strategies.rounds import SampledTraining
from fedstats_app.strategies.update_limits import Update, UpdateLimits, update_length
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.training import TrainingMetrics, check_training_reply

logger = logging.getLogger("fedstats_app")


@dataclass(frozen=True)
class TrainingRound:
    """What happened in one round.

    Attributes
    ----------
    server_round : int
        Absolute: counted from 1 at the start of training, whether or not the run was interrupted.
    arrays : ArrayRecord
        The model after it: what is trained.
    num_examples : dict
        From every client whose update was averaged to its number of samples.
    failures : dict
        From every client that was dropped to the reason.
    left_out : dict
        From every client that was dropped for being out of proportion to how many times the usual length its update is.
    clipped : dict
        The same of clients whose update was shortened.
    train_loss : float
        Mean over samples of the clients' losses in their last local epoch.
    bytes_down, bytes_up : int
        Of the arrays of all clients of the round, those of dropped ones included.
    seconds : float
        Wall-clock time of the round.
    """

    server_round: int
    arrays: ArrayRecord
    num_examples: Mapping[int, int]
    failures: Mapping[int, str]
    left_out: Mapping[int, float]
    clipped: Mapping[int, float]
    train_loss: float
    bytes_down: int
    bytes_up: int
    seconds: float


@dataclass
class _Progress(Answers[TrainingMetrics]):
    """What is counted while a round goes on."""

    started: float = field(default_factory=time.perf_counter)
    left_out: Mapping[int, float] = field(default_factory=dict)
    clipped: Mapping[int, float] = field(default_factory=dict)


class FineTuning(SampledTraining):
    """Runs another strategy's rounds: who takes part, what is sent besides, which replies count, and which round it is.

    What is averaged, and how, is the other strategy's business: any of Flower's that takes ``train`` replies will do.
    It sees the clients of a round as all there are (they are drawn here, by (seed, round)), gets only replies that
    passed the checks, and absolute round numbers, also where a run goes on from a checkpoint.

    Parameters
    ----------
    inner : Strategy
        With ``fraction_train=1.0`` and ``fraction_evaluate=0.0``.
    request : TrainingRequest
        What clients need to know.
    clients : mapping
        From the clients that can train to their number of samples, None where it is not known.
    fixed : mapping, optional
        Tensors of the head that are not trained and that clients need: ``head.weight``, ``head.bias``.
    fraction : float
        Share of the clients that take part in a round, at least one.
    min_clients : int
        A round with fewer usable updates (or than it asked clients, if that is less) ends the training.
    first_round : int
        Absolute number of the first round.
    limits : UpdateLimits, optional
        On what one client can do to a round; by default clients whose update is out of all proportion are left out.
    rate_factor : callable
        From an absolute round to what the request's learning rate is multiplied by in it.

    Attributes
    ----------
    on_round : callable or None
        Called after every round with a :class:`TrainingRound`; training ends early if it returns True.
    """

    def __init__(
        self,
        inner: Strategy,
        request: TrainingRequest,
        clients: Mapping[int, int | None],
        *,
        fixed: Mapping[str, Tensor] | None = None,
        fraction: float = 1.0,
        min_clients: int = 1,
        first_round: int = 1,
        limits: UpdateLimits | None = None,
        rate_factor: Callable[[int], float] = lambda number: 1.0,
    ) -> None:
        super().__init__(clients, fraction, min_clients, request.seed)
        if first_round < 1:
            raise ValueError(f"first_round must be at least 1, got {first_round}")
        self.inner, self.request, self.fixed, self.first_round = inner, request, to_record(fixed or {}), first_round
        self.on_round: Callable[[TrainingRound], bool | None] | None = None
        self.limits, self.rate_factor = limits or UpdateLimits(), rate_factor
        self._progress = _Progress()
        self._current: dict[str, Tensor] = {}

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds and return Flower's Result.

        Flower's own loop counts from 1 and cannot be stopped, so it runs one round at a time here.

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`ClientGrid`.
        initial_arrays : ArrayRecord
            What is trained, float32.
        num_rounds : int
            How many, from ``first_round`` on.
        timeout : float, optional
            Seconds for each round, beside the limit of every request; none by default.
        train_config : ConfigRecord, optional
            Further entries of the config that clients get.
        evaluate_config, evaluate_fn
            As Flower's; ``evaluate_fn`` gets absolute rounds.

        Raises
        ------
        TooFewClients
            If a round has too few usable updates.
        """
        if not isinstance(grid, ClientGrid):
            grid = ClientGrid(grid)
        result, arrays, first = Result(arrays=initial_arrays), initial_arrays, self.first_round
        last = first + num_rounds - 1
        with grid.silences.forgotten_afterwards(), grid.progress.doing("training", num_rounds) as step:
            for absolute in range(first, last + 1):
                step.at(absolute - first, f"round {absolute} of {last}")
                self.first_round = absolute
                config = ConfigRecord({**to_values(self._request_of(absolute)), **(train_config or {})})
                one = super().start(grid, arrays, 1, timeout, config, evaluate_config)  # type: ignore[arg-type]  # Flower declares float but passes None on to a Grid, which takes it
                arrays = result.arrays = one.arrays
                result.train_metrics_clientapp[absolute] = one.train_metrics_clientapp[1]
                scores = evaluate_fn(absolute, arrays) if evaluate_fn is not None else None
                if scores is not None:
                    result.evaluate_metrics_serverapp[absolute] = scores
                if self.on_round is not None and self.on_round(self._round(absolute, arrays)):
                    break
        return result

    # Flower's Strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the inner strategy's messages to this round's clients, with what is fixed beside what is trained."""
        absolute = self._absolute(server_round)
        self._progress = _Progress()
        self._current = to_tensors(arrays)
        # The inner strategy samples from all nodes it sees, with a generator of its own: it sees the participants only.
        participants = ClientGrid(grid, {client: client for client in self.begin_round(grid, absolute)})
        messages = list(self.inner.configure_train(absolute, arrays, config, participants))
        # One content for all: clients of one SuperNode then share a message.
        content = RecordDict({**(messages[0].content if messages else {}), "fixed": self.fixed})
        self._progress.bytes_down = len(messages) * array_bytes(content)
        return [
            Message(
                content,
                dst_node_id=msg.metadata.dst_node_id,
                message_type=msg.metadata.message_type,
                group_id=str(absolute),
            )
            for msg in messages
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the replies that can be used.

        Raises
        ------
        TooFewClients
            If there are too few of them.
        """
        progress, asked = self._progress, len(self.participants(self._absolute(server_round)))
        taken = dict[int, Update]()
        for client, reply, metrics in usable(replies, self._read, progress.failures, self.clients):
            if metrics.num_examples:
                length = update_length(self._current, reply)
                taken[client] = Update(reply, metrics.num_examples, length)
                progress.of[client] = metrics
                progress.bytes_up += array_bytes(reply.content)
        limited = self.limits.apply(taken, self._current)
        progress.left_out, progress.clipped = limited.left_out, limited.clipped
        for client, times in limited.left_out.items():
            progress.failures[client] = f"its update is {times:.3g} times as long as is usual (optimizer@outlier)"
            del progress.of[client]
        number = len(limited.replies)
        if number < self.needed(asked):
            raise TooFewClients(
                f"round {self._absolute(server_round)}: {number} of {asked} clients sent a usable update, "
                f"{self.needed(asked)} are needed (min-clients); {progress.reasons()}"
            )
        arrays, averaged = self.inner.aggregate_train(self._absolute(server_round), limited.replies)
        if arrays is None:
            return None, averaged
        # Flower's adaptive strategies return float64 where numpy promotes; a round's model is float32, always.
        return to_record({name: tensor.float() for name, tensor in to_tensors(arrays).items()}), averaged

    def summary(self) -> None:
        """Log what is done."""
        logger.info("%s on %d clients: %s", type(self.inner).__name__, len(self.clients), self.request)

    def _request_of(self, absolute: int) -> TrainingRequest:
        options = self.request.options
        rate = options.learning_rate * self.rate_factor(absolute)
        return replace(self.request, options=replace(options, learning_rate=rate))

    def _absolute(self, server_round: int) -> int:
        return self.first_round + server_round - 1

    def _read(self, reply: Message) -> TrainingMetrics:
        shapes = {name: tuple(tensor.shape) for name, tensor in self._current.items()}
        return check_training_reply(reply, shapes, self.clients[int(reply.metadata.src_node_id)])

    def _round(self, absolute: int, arrays: ArrayRecord) -> TrainingRound:
        progress = self._progress
        total = sum(one.num_examples for one in progress.of.values())
        weighted = sum(one.loss * one.num_examples for one in progress.of.values())
        return TrainingRound(
            absolute,
            arrays,
            {client: one.num_examples for client, one in progress.of.items()},
            progress.failures,
            progress.left_out,
            progress.clipped,
            weighted / total,
            progress.bytes_down,
            progress.bytes_up,
            time.perf_counter() - progress.started,
        )
