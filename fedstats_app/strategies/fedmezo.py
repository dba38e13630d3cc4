"""FedMeZO: every node follows the same log of seeds and scalars; a round costs a client tens of bytes.

In round t the server draws a seed, every client measures the difference quotients of its loss along the seed's
directions, (L(theta + eps z) - L(theta - eps z)) / (2 eps) (MeZO: Malladi et al., NeurIPS 2023, algorithm 1), the server
averages them with weights n_k, and every node applies theta <- theta - lr / P sum_p gbar_p z_p to its own replica. With
weights n_k and a client's whole data as one batch this is MeZO on all the data, however they are split.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedstats_app.strategies.client_grid import ClientGrid
from fedstats_app.strategies.discovery import TooFewClients
from fedstats_app.strategies.participants import draw_participants
from fedstats_app.training.zeroth_order.log import SEED_LIMIT, Update, UpdateLog
from fedstats_app.training.zeroth_order.replica import Replica
from fedstats_app.wire import RejectedReply
from fedstats_app.wire.mezo import (
    CURVATURE_DIRECTIONS,
    MEZO,
    Behind,
    MezoReply,
    MezoRequest,
    Wanted,
    read_mezo_reply,
)
from fedstats_app.wire.mezo_setup import MezoSetup
from fedstats_app.wire.training import to_record

logger = logging.getLogger("fedstats_app")

# Keeps the rounds' seeds apart from every other draw by (seed, number).
SEED_STREAM = 0x3E20
# Scalars whose median size is the measure for those to come.
SCALARS_REMEMBERED = 1000
# Rounds without enough usable scalars, one after another, after which training ends.
MAX_VOID_ROUNDS = 10
# Times the median size of the first scalars: with that many rounds above it, training has diverged.
EXPLOSION, EXPLODED_ROUNDS = 1e4, 5
# Of the largest learning rate at which the loss of a quadratic model still falls, 2 / (tr H + 2 lambda_max).
CURVATURE_SAFETY = 0.5


class ReplicasDiffer(RuntimeError):
    """No digest has a majority, and the server has no replica of its own to say which is right."""


class TrainingDiverged(RuntimeError):
    """The parameters or the difference quotients have grown beyond use."""


@dataclass(frozen=True)
class MezoRound:
    """What happened in one round.

    Attributes
    ----------
    server_round : int
        From 1.
    update : Update
        What every replica does; all zero if too few clients answered.
    num_examples : dict
        From every client whose scalars were averaged to its number of samples.
    failures : dict
        From every client that was asked and whose scalars were not to the reason.
    replayed : dict
        From every client that had to be sent more than the round's own bytes, after it said so or its digest was wrong,
        to the reason.
    clipped : tuple of int
        Clients whose scalars were cut.
    bytes_down, bytes_up : int
        The payload of the round: training, round, seed and last update; scalars, count and digest.
    catch_up_bytes : int
        What nodes had missed, the start included.
    seconds : float
        Wall-clock time.
    """

    server_round: int
    update: Update
    num_examples: Mapping[int, int]
    failures: Mapping[int, str]
    replayed: Mapping[int, str]
    clipped: tuple[int, ...]
    bytes_down: int
    bytes_up: int
    catch_up_bytes: int
    seconds: float


@dataclass
class _Progress:
    """What is counted while a question goes round."""

    started: float = field(default_factory=time.perf_counter)
    failures: dict[int, str] = field(default_factory=dict)
    replayed: dict[int, str] = field(default_factory=dict)
    clipped: list[int] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    catch_up_bytes: int = 0


class FedMeZO(Strategy):
    """Zeroth-order tuning in which no weights travel after the start.

    Parameters
    ----------
    setup : MezoSetup
        The model, what of it is tuned, how it is probed.
    start : mapping
        ``head.weight`` (C, D) and ``head.bias`` (C,) float32 to start from; a node that lacks them is sent them.
    clients : mapping
        From the clients that can take part to their number of samples, None where it is not known.
    learning_rate : float, optional
        By default half of 1 / (mean curvature along the first directions), which the clients measure once: the trace of
        the loss's Hessian is what limits a step along a random direction.
    replica : Replica, optional
        The server's own. Without one, the digest of most nodes counts.
    log : UpdateLog, optional
        To go on from.
    fraction : float
        Share of the clients that take part in a round, at least one.
    min_clients : int
        With fewer usable answers (or than were asked, if that is less) a round changes nothing; ten such rounds in a
        row end the training.
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average of algorithm 2.
    clip : float
        A scalar larger than this times the median size of the last thousand is cut to that; 0 for never. Honest scalars
        do not come near the default.
    training : int
        Number of the training in the run, which nodes keep their state under.

    Attributes
    ----------
    log : UpdateLog
        All updates so far.
    on_round : callable or None
        Called after every round with a :class:`MezoRound`; training ends early if it returns True.

    Raises
    ------
    TooFewClients
        If there are no clients.
    ValueError
        If an option has another value.
    """

    def __init__(
        self,
        setup: MezoSetup,
        start: Mapping[str, Tensor],
        clients: Mapping[int, int | None],
        *,
        learning_rate: float | None = None,
        replica: Replica | None = None,
        log: UpdateLog | None = None,
        fraction: float = 1.0,
        min_clients: int = 1,
        weighting: Literal["examples", "uniform"] = "examples",
        clip: float = 100.0,
        training: int = 0,
    ) -> None:
        if not clients:
            raise TooFewClients("no client can train")
        if not 0.0 < fraction <= 1.0 or clip < 0.0:
            raise ValueError(f"fraction must lie in (0, 1] and clip be at least 0, got {fraction} and {clip}")
        if learning_rate is not None and not 0.0 < learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
        if weighting not in ("examples", "uniform"):
            raise ValueError(f"weighting must be examples or uniform, got {weighting!r}")
        self.setup, self.start_tensors, self.clients = setup, dict(start), dict(clients)
        self.learning_rate, self.replica = learning_rate, replica
        self.log = UpdateLog(setup.num_directions) if log is None else log
        self.fraction, self.min_clients, self.weighting, self.clip = fraction, min_clients, weighting, clip
        self.training = training
        self.on_round: Callable[[MezoRound], bool | None] | None = None
        if replica is not None and replica.round != len(self.log):
            replica.apply(self.log[replica.round :])
        self._known: dict[int, int] = {}
        self._sizes: deque[float] = deque(maxlen=SCALARS_REMEMBERED)
        self._first_sizes: list[float] = []
        self._exploded = self._void = 0
        self._grid: Grid | None = None
        self._progress = _Progress()
        self._expected = b""

    # The rounds

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
        """Run rounds, bring every client's replica to the last one, and return Flower's Result.

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`ClientGrid`.
        initial_arrays : ArrayRecord, optional
            Not used: the start was given to the constructor.
        num_rounds : int
            How many, after those of the log.
        timeout : float, optional
            Seconds for each exchange, beside the limit of every request; none by default.
        train_config, evaluate_config
            Not used: a node keeps the setup.
        evaluate_fn : callable, optional
            Called with the round and the tuned parameters of the server's replica, where it has one.

        Raises
        ------
        TooFewClients
            If ten rounds in a row have too few usable answers, or the curvature cannot be measured.
        ReplicasDiffer, TrainingDiverged
            As their names say.
        """
        if not isinstance(grid, ClientGrid):
            grid = ClientGrid(grid)
        result, empty = Result(arrays=ArrayRecord()), ArrayRecord()
        if self.learning_rate is None:
            self.learning_rate = self.measure_learning_rate(grid, timeout)
        for _ in range(num_rounds):
            number = len(self.log) + 1
            messages = self.configure_train(number, empty, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            _, metrics = self.aggregate_train(number, replies)
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            if evaluate_fn is not None and self.replica is not None:
                scores = evaluate_fn(number, to_record(self.replica.state()))
                if scores is not None:
                    result.evaluate_metrics_serverapp[number] = scores
            if self.on_round is not None and self.on_round(self._round()):
                break
        if self.replica is not None:
            result.arrays = to_record(self.replica.state())
        return result

    def participants(self, server_round: int) -> list[int]:
        """Return the clients of a round, ascending, drawn without replacement by (seed, round)."""
        return draw_participants(self.clients, self.fraction, self.setup.request.seed, server_round)

    def seed(self, server_round: int) -> int:
        """Return the seed of a round: a fresh one, or one of the pool's."""
        draw = np.random.default_rng([self.setup.request.seed, SEED_STREAM, self.training, server_round])
        pool = self.setup.pool
        return int(draw.integers(SEED_LIMIT)) if pool is None else pool.first + int(draw.integers(pool.size))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the round's messages: its seed, and the updates that each client lacks."""
        self._begin(grid)
        return self._messages(self.participants(server_round), "")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the scalars and write the round's update into the log; no arrays, for none travel.

        Raises
        ------
        TooFewClients, ReplicasDiffer, TrainingDiverged
            See :meth:`start`.
        """
        answers = self._checked(replies, "", self.setup.num_directions)
        self._answers = {client: answer for client, answer in answers.items() if answer.num_examples}
        asked = len(self.participants(server_round))
        enough = len(self._answers) >= max(1, min(self.min_clients, asked))
        self._count_void(enough, asked)
        steps = self._steps(self._answers) if enough else (0.0,) * self.setup.num_directions
        if not enough:
            self._answers = {}
        self._append(Update(self.seed(server_round), steps))
        return None, MetricRecord({"num-clients": len(self._answers), "num-failed": len(self._progress.failures)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing: the replicas are evaluated by ``evaluate.mezo``, see :meth:`evaluation_messages`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing."""
        return None

    def summary(self) -> None:
        """Log what is done."""
        logger.info("FedMeZO on %d clients: %s", len(self.clients), self.setup)

    # Questions beside the rounds

    def measure_learning_rate(self, grid: Grid, timeout: float | None = None) -> float:
        """Ask every client for the loss's curvature along a few directions, and return what a step may be.

        Raises
        ------
        TooFewClients
            If too few answer, or the loss is flat or falls away along all of them.
        """
        answers = self._ask(grid, sorted(self.clients), "curvature", CURVATURE_DIRECTIONS, timeout)
        answers = {client: answer for client, answer in answers.items() if answer.num_examples}
        if len(answers) < max(1, min(self.min_clients, len(self.clients))):
            raise TooFewClients(f"the curvature could not be measured: {self._first_reasons()}")
        curvature = statistics.fmean(self._average(answers))
        if not curvature > 0.0:
            raise TooFewClients(
                f"the curvature along {CURVATURE_DIRECTIONS} directions is {curvature:g}: choose a learning rate"
            )
        return CURVATURE_SAFETY / curvature

    def synchronise(self, grid: Grid, timeout: float | None = None) -> tuple[list[int], dict[int, str]]:
        """Bring the replica of every client to the end of the log.

        Returns
        -------
        confirmed : list of int
            Clients whose replica has the right digest.
        failures : dict
            From every other client to the reason.
        """
        answers = self._ask(grid, sorted(self.clients), "sync", 0, timeout)
        return sorted(answers), dict(self._progress.failures)

    def evaluation_messages(self, message_type: str) -> list[Message]:
        """Return a message of a type to every client, which brings it to the end of the log."""
        return self._messages(sorted(self.clients), "", message_type)

    @property
    def catch_up_bytes(self) -> int:
        """What the last question sent besides its own bytes."""
        return self._progress.catch_up_bytes

    def _ask(
        self, grid: Grid, clients: list[int], wanted: Wanted, num_scalars: int, timeout: float | None
    ) -> dict[int, MezoReply]:
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        self._begin(grid)
        replies = grid.send_and_receive(self._messages(clients, wanted), timeout=timeout)
        return self._checked(replies, wanted, num_scalars)

    def _begin(self, grid: Grid) -> None:
        self._grid, self._progress, self._answers = grid, _Progress(), {}

    def _messages(self, clients: Iterable[int], wanted: Wanted, message_type: str = MEZO) -> list[Message]:
        return self._to_clients({client: self._known.get(client, -1) for client in clients}, wanted, message_type)

    def _to_clients(
        self, known: Mapping[int, int], wanted: Wanted, message_type: str = MEZO, *, restart: bool = False
    ) -> list[Message]:
        """Return a message to each client, given the last round it knows; the same content where that is the same."""
        contents: dict[int, tuple[MezoRequest, RecordDict]] = {}
        messages = []
        for client, last in known.items():
            if last not in contents:
                request = self._request(last, wanted, restart)
                contents[last] = (request, request.to_content())
            request, content = contents[last]
            self._progress.bytes_down += request.round_bytes
            self._progress.catch_up_bytes += request.catch_up_bytes
            messages.append(
                Message(content, dst_node_id=client, message_type=message_type, group_id=str(len(self.log) + 1))
            )
        return messages

    def _request(self, last: int, wanted: Wanted, restart: bool) -> MezoRequest:
        number, pool = len(self.log) + 1, self.setup.pool
        missed = self.log[max(last, 0) :]
        coefficients = None
        if pool is not None and len(missed) > pool.size:
            missed, coefficients = [], np.zeros((pool.size, self.setup.num_directions))
            for update in self.log:
                coefficients[pool.index(update.seed)] += update.steps
        return MezoRequest(
            self.training,
            number,
            self.seed(number),
            tuple(missed),
            wanted,
            restart,
            coefficients,
            self.setup if last < 0 else None,
            self.start_tensors if last < 0 else {},
        )

    # What came back

    def _checked(self, replies: Iterable[Message], wanted: Wanted, num_scalars: int) -> dict[int, MezoReply]:
        """Return the answers of clients whose replica is right, after bringing back those whose was not."""
        answers, behind = self._read(replies, num_scalars)
        self._expected = self._digest(answers)
        wrong = {client for client, answer in answers.items() if answer.digest != self._expected}
        end = len(self.log)
        retries = []
        catching_up = {client: last for client, last in behind.items() if last <= end}
        if catching_up:
            retries += self._to_clients(catching_up, wanted)
            self._progress.replayed.update({client: f"it knew round {last}" for client, last in catching_up.items()})
        restarting = dict.fromkeys(sorted({*wrong, *(behind.keys() - catching_up.keys())}), -1)
        if restarting:
            retries += self._to_clients(restarting, wanted, restart=True)
            self._progress.replayed.update(dict.fromkeys(restarting, f"its replica of round {end} differs"))
        for client in wrong:
            del answers[client]
        if retries and self._grid is not None:
            again, still_behind = self._read(self._grid.send_and_receive(retries), num_scalars)
            self._expected = self._expected or self._digest(again)
            for client, answer in again.items():
                if answer.digest == self._expected:
                    answers[client] = answer
                else:
                    self._progress.failures[client] = f"its replica of round {end} differs also after a replay"
            for client, last in still_behind.items():
                self._progress.failures[client] = f"it cannot follow: it knows round {last} of {end}"
        self._known.update(dict.fromkeys(answers, end))
        for client in self._progress.failures:
            self._known.pop(client, None)
        return dict(sorted(answers.items()))

    def _read(self, replies: Iterable[Message], num_scalars: int) -> tuple[dict[int, MezoReply], dict[int, int]]:
        answers: dict[int, MezoReply] = {}
        behind: dict[int, int] = {}
        for reply in replies:
            client = int(reply.metadata.src_node_id)
            try:
                if client not in self.clients:
                    raise RejectedReply("it was not asked")
                answer = read_mezo_reply(reply, num_scalars, self.clients[client] if num_scalars else None)
            except RejectedReply as error:
                self._progress.failures[client] = str(error)
                continue
            if isinstance(answer, Behind):
                behind[client] = answer.round
            else:
                answers[client] = answer
                self._progress.bytes_up += answer.num_bytes
        return answers, behind

    def _digest(self, answers: Mapping[int, MezoReply]) -> bytes:
        """Return the digest that every replica must have: the server's, or that of most nodes."""
        if self.replica is not None:
            return self.replica.digest()
        votes = Counter(answer.digest for answer in answers.values()).most_common(2)
        if len(votes) > 1 and votes[0][1] == votes[1][1]:
            raise ReplicasDiffer(
                f"round {len(self.log) + 1}: two digests of the replicas have {votes[0][1]} nodes each, and the server "
                "has no replica of its own: nobody can say which is right"
            )
        return votes[0][0] if votes else b""

    # The update

    def _average(self, answers: Mapping[int, MezoReply]) -> list[float]:
        """Return the weighted mean of every scalar, summed exactly: the order of the clients does not matter."""
        weights = {
            client: float(answer.num_examples) if self.weighting == "examples" else 1.0
            for client, answer in answers.items()
        }
        total = math.fsum(weights.values())
        columns = zip(*(answer.scalars for answer in answers.values()), strict=True)
        return [
            math.fsum(weight * value for weight, value in zip(weights.values(), column, strict=True)) / total
            for column in columns
        ]

    def _steps(self, answers: Mapping[int, MezoReply]) -> tuple[float, ...]:
        """Return the round's steps: this is where they are rounded, once for everybody."""
        if self.learning_rate is None:
            raise ValueError("the learning rate is not known yet: measure_learning_rate finds one")
        clipped = self._clipped(answers)
        rate = self.learning_rate / self.setup.num_directions
        return tuple(rate * mean for mean in self._average(clipped))

    def _clipped(self, answers: Mapping[int, MezoReply]) -> dict[int, MezoReply]:
        sizes = [abs(value) for answer in answers.values() for value in answer.scalars]
        limit = self.clip * statistics.median([*self._sizes, *sizes]) if self.clip else math.inf
        self._watch_for_explosion(statistics.median(sizes))
        self._sizes.extend(min(size, limit) for size in sizes)
        result = {}
        for client, answer in answers.items():
            scalars = tuple(max(-limit, min(limit, value)) for value in answer.scalars)
            if scalars != answer.scalars:
                self._progress.clipped.append(client)
            result[client] = MezoReply(scalars, answer.num_examples, answer.digest)
        return result

    def _watch_for_explosion(self, size: float) -> None:
        if len(self._first_sizes) < MAX_VOID_ROUNDS:
            self._first_sizes.append(size)
            return
        self._exploded = self._exploded + 1 if size > EXPLOSION * statistics.median(self._first_sizes) else 0
        if self._exploded >= EXPLODED_ROUNDS:
            raise TrainingDiverged(
                f"round {len(self.log) + 1}: for {EXPLODED_ROUNDS} rounds the clients' difference quotients were over "
                f"{EXPLOSION:g} times those of the first rounds; choose a smaller learning rate"
            )

    def _append(self, update: Update) -> None:
        self.log.append(update)
        if self.replica is None:
            return
        self.replica.apply([update])
        if not self.replica.is_finite:
            raise TrainingDiverged(f"round {len(self.log)}: the parameters are not finite; choose a smaller rate")

    def _count_void(self, enough: bool, asked: int) -> None:
        self._void = 0 if enough else self._void + 1
        if self._void >= MAX_VOID_ROUNDS:
            raise TooFewClients(
                f"round {len(self.log) + 1}: {len(self._answers)} of {asked} clients sent usable scalars, "
                f"{min(self.min_clients, asked)} are needed (min-clients), and so for {MAX_VOID_ROUNDS} rounds; "
                f"{self._first_reasons()}"
            )

    def _round(self) -> MezoRound:
        progress = self._progress
        return MezoRound(
            len(self.log),
            self.log[-1],
            {client: answer.num_examples for client, answer in self._answers.items()},
            dict(progress.failures),
            dict(progress.replayed),
            tuple(progress.clipped),
            progress.bytes_down,
            progress.bytes_up,
            progress.catch_up_bytes,
            time.perf_counter() - progress.started,
        )

    def _first_reasons(self) -> str:
        failures = self._progress.failures
        shown = "; ".join(f"client {client}: {reason}" for client, reason in list(failures.items())[:3])
        return shown + (f"; and {len(failures) - 3} more" if len(failures) > 3 else "")
