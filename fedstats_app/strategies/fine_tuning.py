"""Stage 2: Flower's own strategies, started from a head, within limits on what one client can do to a round."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedstats_app.grid.asking import Answers, array_bytes, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.strategies.rounds import SampledTraining
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.proportion import allowances, capped, usual_size
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.training import TrainingMetrics, check_training_reply

logger = logging.getLogger("fedstats_app")


@dataclass
class TrainingRound(Answers[TrainingMetrics]):
    """One round: measurements of the clients in the average, reasons of the others, and bytes.

    Bytes are those of the arrays of all clients of the round, those of dropped ones included.

    Attributes
    ----------
    server_round : int
        Absolute: counted from 1 at the start of training, whether or not the run was interrupted.
    arrays : ArrayRecord
        The trained parameters after it.
    clipped : dict
        From every client whose update was shortened to its length, in multiples of the usual one.
    seconds : float
        Wall-clock time of the round.
    """

    server_round: int = 0
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    clipped: Mapping[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def num_examples(self) -> dict[int, int]:
        """From every client whose update was averaged to its number of samples."""
        return {client: metrics.num_examples for client, metrics in self.by_client.items()}

    @property
    def train_loss(self) -> float:
        """Mean over samples of the clients' losses in their last local epoch."""
        total = sum(metrics.loss * metrics.num_examples for metrics in self.by_client.values())
        return total / sum(self.num_examples.values())


def times_usual(lengths: Mapping[int, float], num_examples: Mapping[int, int]) -> dict[int, float]:
    """Compute the length of each client's update in multiples of the usual one times its allowance.

    The usual length is the upper quartile over the round's clients
    (:func:`~fedstats_app.training.proportion.usual_size`). A client with more samples than the mean takes more steps,
    and one with fewer weighs less: in both cases its allowance is larger.
    """
    usual, allowed = usual_size(lengths.values()), allowances(num_examples)
    return {client: length / (usual * allowed[client]) if usual else 0.0 for client, length in lengths.items()}


class FineTuning(SampledTraining[TrainingRound]):
    """Runs the rounds of another strategy, any of Flower's that takes ``train`` replies, which averages.

    It sees only the clients of a round (they are drawn here, by (seed, round)), gets only replies that passed the
    checks, and absolute round numbers, also if a run continues from a checkpoint.

    Parameters
    ----------
    inner : Strategy
        With ``fraction_train=1.0`` and ``fraction_evaluate=0.0``.
    request : TrainingRequest
        Sent to the clients.
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
    clip : float
        A longer update than this times the usual length is shortened to that; 0 for never.
    max_share : float, optional
        Largest share of a round's samples that counts for one client; by default
        :func:`~fedstats_app.training.proportion.largest_share`, and 1 is no limit.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> training = FineTuning(FedAvg(), TrainingRequest(3, "probe"), {5: 100, 6: 50, 7: 80}, fraction=0.7)
    >>> len(training.participants(1)), training.participants(1) == training.participants(1)
    (2, True)
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
        clip: float = 1.0,
        max_share: float | None = None,
    ) -> None:
        super().__init__(clients, fraction, min_clients, request.seed)
        if first_round < 1:
            raise ValueError(f"first_round must be at least 1, got {first_round}")
        self.inner, self.request, self.fixed, self.first_round = inner, request, to_record(fixed or {}), first_round
        self.clip, self.max_share = clip, max_share
        self.outcome, self._started = TrainingRound(), 0.0
        self._current: dict[str, Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the inner strategy's messages to this round's clients, with what is fixed beside what is trained."""
        self.outcome, self._started = TrainingRound(server_round=server_round), time.perf_counter()
        self._current = to_tensors(arrays)
        config = ConfigRecord({**to_values(self.request), **config})
        # The inner strategy samples from all nodes it sees, with a generator of its own: it sees the participants only.
        participants = ClientGrid(grid, {client: client for client in self.begin_round(grid, server_round)})
        messages = list(self.inner.configure_train(server_round, arrays, config, participants))
        # One content for all: clients of one SuperNode then share a message.
        content = RecordDict({**(messages[0].content if messages else {}), "fixed": self.fixed})
        self.outcome.bytes_down = len(messages) * array_bytes(content)
        known = [(msg.metadata.dst_node_id, msg.metadata.message_type) for msg in messages]
        return [Message(content, node, message_type, group_id=str(server_round)) for node, message_type in known]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the replies that can be used.

        Raises
        ------
        TooFewClients
            If there are too few of them.
        """
        this, num_asked = self.outcome, len(self.participants(server_round))
        taken = dict[int, Message]()
        for client, reply, metrics in usable(replies, self._read, this.failures, self.clients):
            if metrics.num_examples:
                taken[client], this.by_client[client] = reply, metrics
                this.bytes_up += array_bytes(reply.content)
        self._limit(taken)
        needed = self.needed(num_asked)
        if len(taken) < needed:
            raise TooFewClients(
                f"round {server_round}: {len(taken)} of {num_asked} sites sent a usable update, "
                f"{needed} are needed (min-clients); {this.reasons()}"
            )
        arrays, averaged = self.inner.aggregate_train(server_round, list(taken.values()))
        if arrays is not None:
            # Flower's adaptive strategies return float64 where numpy promotes; a round's model is float32, always.
            arrays = to_record({name: tensor.float() for name, tensor in to_tensors(arrays).items()})
        this.arrays, this.seconds = arrays or to_record(self._current), time.perf_counter() - self._started
        return arrays, averaged

    def summary(self) -> None:
        """Log the strategy, the number of clients and the request."""
        logger.info("%s on %d clients: %s", type(self.inner).__name__, len(self.clients), self.request)

    def _read(self, reply: Message) -> TrainingMetrics:
        shapes = {name: tuple(tensor.shape) for name, tensor in self._current.items()}
        return check_training_reply(reply, shapes, self.clients[int(reply.metadata.src_node_id)])

    def _limit(self, taken: dict[int, Message]) -> None:
        """Shorten the updates that are too long, and lower the weights that are too large."""
        this = self.outcome
        lengths = {}
        for client, reply in taken.items():
            squares = (float(change.square().sum()) for change in self._changes(reply).values())
            lengths[client] = math.sqrt(math.fsum(squares))
        times = times_usual(lengths, this.num_examples)
        this.clipped = {client: ratio for client, ratio in times.items() if ratio > self.clip > 0.0}
        weights = capped(this.num_examples, self.max_share)
        for client, reply in taken.items():
            if client in this.clipped:
                factor, changes = self.clip / this.clipped[client], self._changes(reply)
                shortened = {name: old.double() + factor * changes[name] for name, old in self._current.items()}
                reply.content["arrays"] = to_record({name: tensor.float() for name, tensor in shortened.items()})
            if weights[client] != this.by_client[client].num_examples:
                metrics = {**reply.content.metric_records["metrics"], "num-examples": weights[client]}
                reply.content["metrics"] = MetricRecord(metrics)

    def _changes(self, reply: Message) -> dict[str, Tensor]:
        """Compute the changes of all arrays, in float64."""
        changed = to_tensors(reply.content.array_records["arrays"])
        return {name: changed[name].double() - tensor.double() for name, tensor in self._current.items()}
