"""FedMeZO: every node applies the same log of seeds and scalars; a round costs a client tens of bytes.

In round t the server draws a seed, every client measures the difference quotients of its loss along the seed's
directions, (L(theta + eps z) - L(theta - eps z)) / (2 eps) (MeZO: Malladi et al., NeurIPS 2023, algorithm 1), the
server averages them with weights n_k, and every node applies theta <- theta - lr / P sum_p gbar_p z_p to its own
replica. With weights n_k, a client's whole data as one batch, ``clip`` 0 and ``max_share`` 1 this is MeZO on all the
data, however they are split.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor, nn

from fedstats_app.fedmezo.average import Averaged, ScalarAverage, TrainingDiverged, Weighting
from fedstats_app.fedmezo.directions import Distribution
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.mezo_options import tuned_part
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, load_start, make_replica
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.mezo_exchange import MezoAnswers, MezoExchange
from fedstats_app.strategies.rounds import SampledTraining
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.proportion import DECIDES, capped, deciding
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, Wanted

logger = logging.getLogger("fedstats_app")

# Training ends after this many rounds in a row in which every scalar is 0 (no active units, or a loss of 0),
STALLED_ROUNDS = 5
# or after this many in a row without enough usable scalars.
MAX_VOID_ROUNDS = 10
# Of 1 / (trace of the Hessian): a quadratic loss falls for steps up to 2 / (tr H + 2 lambda_max), which is less than
# that wherever one direction bends much more than the others.
CURVATURE_SAFETY = 0.5


@dataclass(frozen=True)
class MezoRound:
    """Result of one round.

    Attributes
    ----------
    server_round : int
        From 1.
    update : Update
        Change of every replica; all zero if too few clients answered.
    num_examples : dict
        From every client whose scalars were averaged to its number of samples.
    clipped : tuple of int
        Clients that had a scalar above the limit.
    sizes : tuple of float
        Absolute values of all averaged scalars before they were cut; empty if too few clients answered.
    answers : MezoAnswers
        Failures, replays and bytes.
    seconds : float
        Wall-clock time.
    """

    server_round: int
    update: Update
    num_examples: Mapping[int, int]
    clipped: tuple[int, ...]
    sizes: tuple[float, ...]
    answers: MezoAnswers
    seconds: float


class MezoRounds(SampledTraining[MezoRound]):
    """Zeroth-order tuning in which no weights travel after the start, which :meth:`start_from` takes.

    Parameters
    ----------
    setup : MezoSetup
        The model, its tuned part, and the probes.
    clients : mapping
        From the clients that can take part to their number of samples, None if unknown.
    learning_rate : float, optional
        By default half of 1 / (mean curvature along the first directions), which the clients measure once: the trace of
        the loss's Hessian limits a step along a random direction.
    fraction : float
        Share of the clients that take part in a round, at least one.
    min_clients : int
        With fewer usable answers (or fewer than all, if fewer clients take part) a round changes nothing; ten such
        rounds in a row end the training.
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average of algorithm 2.
    clip : float
        A scalar larger than this times the median size of the last thousand is cut to that; 0 for never.
    max_share : float, optional
        Largest share of one client in the weights of a round; by default
        :func:`~fedstats_app.training.proportion.largest_share`, and 1 is no limit.
    training : int
        Number of the training in the run, under which nodes store their state.

    Attributes
    ----------
    log : list of Update
        All updates so far.
    learning_rate : float or None
        None until it is measured.
    replica : Replica
        The server's own.
    stalled_rounds : int
        Latest rounds in a row in which every scalar was 0; after five, training ends.

    Raises
    ------
    ValueError
        If an option is out of range.
    """

    replica: Replica
    _exchange: MezoExchange

    def __init__(
        self,
        setup: MezoSetup,
        clients: Mapping[int, int | None],
        *,
        learning_rate: float | None = None,
        fraction: float = 1.0,
        min_clients: int = 1,
        weighting: Weighting = "examples",
        clip: float = 3.0,
        max_share: float | None = None,
        training: int = 0,
    ) -> None:
        if learning_rate is not None and not 0.0 < learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
        if max_share is not None and not 0.0 < max_share <= 1.0:
            raise ValueError(f"max_share must lie in (0, 1], got {max_share}")
        super().__init__(clients, fraction, min_clients, setup.request.seed)
        self.setup, self.learning_rate, self.max_share, self.training = setup, learning_rate, max_share, training
        self._average = ScalarAverage(weighting, clip)
        self.log: list[Update] = []
        self.stalled_rounds = 0
        self._answers, self._void_rounds = MezoAnswers(), 0
        self._grid: Grid | None = None

    def start_from(
        self,
        start: Mapping[str, Tensor],
        replica: Replica,
        log: Sequence[Update] = (),
        sizes: Iterable[Sequence[float]] = (),
    ) -> None:
        """Take a start, and perhaps the rounds after it.

        Parameters
        ----------
        start : mapping
            Tensors of the model at the start, for nodes that lack them.
        replica : Replica
            The server's own.
        log : sequence of Update
            Earlier rounds.
        sizes : iterable of sequence of float
            Sizes of the scalars of earlier rounds, as in :class:`MezoRound`.
        """
        self._average = ScalarAverage(self._average.weighting, self._average.clip)
        for of_round in sizes:
            self._average.limit(of_round)
        self.log = list(log)
        replica.apply(self.log[replica.round :])
        self.replica = replica
        self._exchange = MezoExchange(self.setup, start, self.clients, self.log, replica, self.training)

    # The rounds

    def begin(self, grid: ClientGrid, timeout: float | None) -> None:
        """Measure the learning rate, if it is not known."""
        if self.learning_rate is None:
            self.measure_learning_rate(grid, timeout)

    @property
    def first_round(self) -> int:  # type: ignore[override]
        """The round after those of the log."""
        return len(self.log) + 1

    def is_last(self) -> bool:
        """Return whether training ends, because the loss no longer changes."""
        stalled = self.stalled_rounds >= STALLED_ROUNDS
        if stalled:
            logger.warning("FedMeZO ends after round %d: the loss no longer changes along any direction", len(self.log))
        return stalled

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Make the round's messages: its seed, and the updates that each client lacks."""
        self._grid, self._answers = grid, MezoAnswers()
        return self._exchange.messages(self._answers, self.begin_round(grid, server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the scalars and append the round's update to the log; there are no arrays.

        Raises
        ------
        TooFewClients, TrainingDiverged
            See :meth:`SampledTraining.start`.
        """
        answers = self._answers
        self._exchange.collect(answers, replies, self._grid)
        usable, num_asked = answers.with_samples, len(self.participants(server_round))
        needed = self.needed(num_asked)
        enough = len(usable) >= needed
        self._void_rounds = 0 if enough else self._void_rounds + 1
        if self._void_rounds >= MAX_VOID_ROUNDS:
            raise TooFewClients(
                f"for {MAX_VOID_ROUNDS} rounds too few sites sent usable scalars, in round {server_round} "
                f"{len(usable)} of {num_asked}; {needed} are needed (min-clients); {answers.reasons()}"
            )
        num_examples = {client: answer.num_examples for client, answer in usable.items()} if enough else {}
        averaged, steps = Averaged(), (0.0,) * self.setup.num_directions
        if enough:
            if self.learning_rate is None:
                raise ValueError("the learning rate is not known yet: call measure_learning_rate first")
            scalars = {client: answer.scalars for client, answer in usable.items()}
            averaged = self._average.take(scalars, capped(num_examples, self.max_share))
            self.stalled_rounds = 0 if any(averaged.means) else self.stalled_rounds + 1
            steps = tuple(self.learning_rate / len(averaged.means) * mean for mean in averaged.means)
        update = Update(self._exchange.seed(server_round), steps)
        self.log.append(update)
        self.replica.apply([update])
        if not self.replica.is_finite:
            raise TrainingDiverged(f"round {server_round}: the parameters are not finite; choose a smaller rate")
        seconds = time.perf_counter() - answers.started
        self.outcome = MezoRound(server_round, update, num_examples, averaged.clipped, averaged.sizes, answers, seconds)
        return None, MetricRecord({"num-clients": len(num_examples), "num-failed": len(answers.failures)})

    def summary(self) -> None:
        """Log the setup."""
        logger.info("FedMeZO: %s", self.setup)

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the tuned parameters of the server's replica."""
        return to_record(self.replica.state())

    # Requests to all clients outside rounds

    def measure_learning_rate(self, grid: Grid, timeout: float | None = None) -> MezoAnswers:
        """Set the learning rate to half of 1 / (mean curvature), which every client measures along a few directions.

        Its mean over directions of independent signs or standard normal numbers is the trace of the Hessian.

        Raises
        ------
        TooFewClients
            If too few answer.
        TrainingDiverged
            If the loss is flat, or falls away, along all of them.
        """
        answers = self._ask(grid, "curvature", timeout)
        usable, needed = answers.with_samples, self.needed(len(self.clients))
        if len(usable) < needed:
            raise TooFewClients(
                f"{len(usable)} of {len(self.clients)} sites measured the loss's curvature, {needed} are needed "
                f"(min-clients); {answers.reasons()}"
            )

        weights = capped({client: answer.num_examples for client, answer in usable.items()}, self.max_share)

        def estimate(sizes: Mapping[int, int]) -> float:
            return statistics.fmean(self._average.mean({client: usable[client].scalars for client in sizes}, sizes))

        for client in deciding(weights, estimate) if self._average.clip else ():
            answers.failures[client] = f"without it the others agree on over {DECIDES:g} times more or less"
            del weights[client]
        curvature = estimate(weights)
        if not curvature > 0.0:
            raise TrainingDiverged(
                f"no learning rate follows from the loss's curvature along {CURVATURE_DIRECTIONS} directions, which is "
                f"{curvature:g}: set one (learning-rate), or soften the start (temperature)"
            )
        self.learning_rate = CURVATURE_SAFETY / curvature
        return answers

    def synchronise(self, grid: Grid, timeout: float | None = None) -> MezoAnswers:
        """Bring the replica of every client to the end of the log; those in ``answers`` have the right digest."""
        return self._ask(grid, "sync", timeout)

    def evaluation_messages(self, message_type: str) -> tuple[list[Message], MezoAnswers]:
        """Return a message to every client, which brings it to the end of the log, and the bytes of these."""
        answers = MezoAnswers()
        messages = self._exchange.messages(answers, sorted(self.clients), message_type=message_type)
        self._exchange.note_following(self.clients)
        return messages, answers

    def _ask(self, grid: Grid, wanted: Wanted, timeout: float | None) -> MezoAnswers:
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        return self._exchange.ask(grid, sorted(self.clients), wanted, timeout)


class FedMeZO(MezoRounds):
    """FedMeZO (Bernier 2024) as a Flower Strategy: tunes any model by forward passes on the clients.

    Nodes answer with :func:`fedstats_app.client.own_replica.mezo_answer`; every node is one client.

    Parameters
    ----------
    num_classes : int
        C.
    model : nn.Module, optional
        From a batch of inputs to (B, C) logits, on any device; it is tuned in place. By default a linear head, whose
        ``weight`` (C, d) and ``bias`` (C,) are the initial arrays, such as another strategy's ``result.arrays``.
    tune : str
        "full", "head" (the module ``head``), "bias" or "norm" (those and the head), or "names:PATTERN,PATTERN".
    num_z : int
        Directions of a round.
    directions : {"rademacher", "gaussian"}
        Signs, or normal numbers as in the thesis.
    epsilon : float
        Distance of the two evaluations from the model.
    batch_size : int
        Samples that a client draws for each direction (algorithm 3); 0 for all.
    learning_rate : float or "auto"
        "auto" is measured before the first round.
    weighting, clip, max_share
        As :class:`MezoRounds`.
    fraction_train : float
        Share of the clients in a round.
    seed : int
        Decides the directions, and which clients a round draws.
    num_clients : int, optional
        Nodes to wait for; by default all that are connected when no new one has come for ``settle_seconds``.
    min_clients : int
        With fewer usable answers a round changes nothing; at least as many nodes are waited for.
    wait_timeout, settle_seconds, reply_timeout : float
        Seconds to wait for nodes, for no new one to come, and for a reply.

    Raises
    ------
    ValueError
        If an option is out of range, or the model has nothing of this kind to tune.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> strategy = FedMeZO(3, network, directions="gaussian", num_z=2)
    >>> strategy.setup.num_directions, strategy.log
    (2, [])
    """

    usual_rounds = 100

    def __init__(
        self,
        num_classes: int,
        model: nn.Module | None = None,
        *,
        tune: str = "full",
        num_z: int = 1,
        directions: Distribution = "rademacher",
        epsilon: float = 1e-3,
        batch_size: int = 0,
        learning_rate: float | Literal["auto"] = "auto",
        weighting: Weighting = "examples",
        clip: float = 3.0,
        max_share: float | None = None,
        fraction_train: float = 1.0,
        seed: int = 0,
        num_clients: int | None = None,
        min_clients: int = 2,
        wait_timeout: float = 120.0,
        settle_seconds: float = 3.0,
        reply_timeout: float = 600.0,
    ) -> None:
        tuned_part(tune)
        setup = MezoSetup(
            TrainingRequest(num_classes, "probe" if tune == "head" else "full", seed=seed),
            tuned=tune,
            epsilon=epsilon,
            num_directions=num_z,
            distribution=directions,
            batch_size=batch_size,
        )
        self._given_rate = None if learning_rate == "auto" else learning_rate
        super().__init__(
            setup,
            {},
            learning_rate=self._given_rate,
            fraction=fraction_train,
            min_clients=min_clients,
            weighting=weighting,
            clip=clip,
            max_share=max_share,
        )
        self.model = model
        if model is not None:
            make_replica(setup, model)
        self.num_clients, self.wait_timeout, self.settle_seconds = num_clients, wait_timeout, settle_seconds
        self.reply_timeout, self._begun = reply_timeout, False

    def __repr__(self) -> str:
        """Return the class, the number of classes and the probes."""
        setup = self.setup
        probes = f"tune={setup.tuned!r}, num_z={setup.num_directions}, directions={setup.distribution!r}"
        return f"FedMeZO({setup.request.num_classes}, {probes})"

    def prepare(self, grid: Grid, initial_arrays: ArrayRecord | None) -> Grid:
        """Load the arrays, and wait for nodes."""
        if initial_arrays is not None or not self._begun:
            self._load(initial_arrays or ArrayRecord())
        grid = self.connected(grid, self.min_clients)
        self._begin(grid)
        return grid

    def finish(self, grid: Grid, timeout: float | None) -> None:
        """Bring every client to the end of the log."""
        self.synchronise(grid, timeout)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Make the round's messages; the first call without :meth:`start` starts from the arrays."""
        self.refuse_noise()
        if not self._begun:
            self._load(arrays)
            self._begin(grid)
            self.begin(grid if isinstance(grid, ClientGrid) else ClientGrid(grid), None)
        return super().configure_train(server_round, arrays, config, grid)

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the state of the model."""
        return to_record(self._state())

    def _load(self, arrays: ArrayRecord) -> None:
        """Load the model's state, unless there are no arrays."""
        given = arrays.to_torch_state_dict()
        if self.model is None:
            if given.keys() != {"weight", "bias"} or given["weight"].ndim != 2:
                raise ValueError(
                    f"initial_arrays: must be weight (C, d) and bias (C,), got {', '.join(given) or 'nothing'}"
                )
            self.model = nn.Linear(given["weight"].shape[1], self.setup.request.num_classes)
        if given:
            load_start(self.model, given)
        self.replica = make_replica(self.setup, self.model)
        self._begun, self.learning_rate = False, self._given_rate

    def _begin(self, grid: Grid) -> None:
        """Take the grid's nodes as the clients, and the model as the start unless training has begun."""
        self.clients.clear()
        self.clients.update(dict.fromkeys(grid.get_node_ids()))
        if not self._begun:
            self.start_from(self._state(), self.replica)
            self._begun = True

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.replica.model.state_dict().items()}
