"""FedMeZO: every node follows the same log of seeds and scalars; a round costs a client tens of bytes.

In round t the server draws a seed, every client measures the difference quotients of its loss along the seed's
directions, (L(theta + eps z) - L(theta - eps z)) / (2 eps) (MeZO: Malladi et al., NeurIPS 2023, algorithm 1), the
server averages them with weights n_k, and every node applies theta <- theta - lr / P sum_p gbar_p z_p to its own
replica. With weights n_k and a client's whole data as one batch this is MeZO on all the data, however they are split.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from fedstats_app.fedmezo.average import Averaged, LearningRate, ScalarAverage, TrainingDiverged, Weighting
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients, wait_for_nodes
from fedstats_app.grid.mezo_exchange import MezoAnswers, MezoExchange
from fedstats_app.strategies.rounds import SampledTraining
from fedstats_app.training.foretold import BIAS, WEIGHT, ClassMeans
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.proportion import DECIDES, capped, deciding
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, MezoReply, Wanted

logger = logging.getLogger("fedstats_app")

# Rounds, one after another, in which every scalar is 0 (a network without active units, a loss of 0): it ends there.
STALLED_ROUNDS = 5
# Rounds without enough usable scalars, one after another, after which training ends.
MAX_VOID_ROUNDS = 10
# Of 1 / (trace of the Hessian): a quadratic loss falls for steps up to 2 / (tr H + 2 lambda_max), which is less than
# that wherever one direction bends much more than the others.
CURVATURE_SAFETY = 0.5


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
    clipped : tuple of int
        Clients of which some were cut.
    left_out : dict
        From every client that is out of proportion to how many times the usual size its scalars are.
    asked : MezoAnswers
        Failures, replays and bytes.
    seconds : float
        Wall-clock time.
    noted : dict
        What :class:`ScalarAverage` remembers of it; empty if too few clients answered.
    """

    server_round: int
    update: Update
    num_examples: Mapping[int, int]
    clipped: tuple[int, ...]
    left_out: Mapping[int, float]
    asked: MezoAnswers
    seconds: float
    noted: Mapping[str, Any]


class MezoRounds(SampledTraining):
    """Zeroth-order tuning in which no weights travel after the start.

    Parameters
    ----------
    setup : MezoSetup
        The model, what of it is tuned, how it is probed.
    start : mapping
        ``head.weight`` (C, D) and ``head.bias`` (C,), float32 or float64, to start from; a node that lacks them is
        sent them.
    clients : mapping
        From the clients that can take part to their number of samples, None where it is not known.
    learning_rate : float, optional
        By default half of 1 / (mean curvature along the first directions), which the clients measure once: the trace of
        the loss's Hessian is what limits a step along a random direction.
    replica : Replica
        The server's own.
    log : sequence of Update
        To go on from.
    rates : mapping, optional
        To go on from: :attr:`rates` as it was at the end of the log.
    fraction : float
        Share of the clients that take part in a round, at least one.
    min_clients : int
        With fewer usable answers (or than were asked, if that is less) a round changes nothing; ten such rounds in a
        row end the training.
    weighting : {"examples", "uniform"}
        Weights n_k, with which the average does not depend on the partition, or the plain average of algorithm 2.
    clip, outlier : float
        A scalar larger than ``clip`` times the median size of the last thousand is cut to that, and a client whose
        gradient is longer than ``outlier`` times the usual one is left out; 0 for never. See :class:`ScalarAverage`.
    remembered : iterable of mapping
        What the rounds of the log noted, by which clients' sizes are judged.
    max_share : float
        Of the weights of a round, the most that one client has.
    guarded : bool, optional
        Whether the rate is lowered where steps turn out too long; by default if no rate is given.
    training : int
        Number of the training in the run, which nodes keep their state under.
    means : ClassMeans, optional
        Of the features that a tuned head takes, by which scalars are foretold: clients are then judged, and scalars
        cut, by what they are away from that.

    Attributes
    ----------
    log : list of Update
        All updates so far.
    on_round : callable or None
        Called after every round with a :class:`MezoRound`; training ends early if it returns True.
    stalled_rounds : int
        Rounds up to now in which every scalar was 0; after five, training ends.

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
        replica: Replica,
        learning_rate: float | None = None,
        log: Sequence[Update] = (),
        rates: Mapping[int, float] | None = None,
        fraction: float = 1.0,
        min_clients: int = 1,
        weighting: Weighting = "examples",
        clip: float = 3.0,
        outlier: float = 3.0,
        remembered: Iterable[Mapping[str, Any]] = (),
        max_share: float = 1.0,
        guarded: bool | None = None,
        training: int = 0,
        means: ClassMeans | None = None,
    ) -> None:
        if means is not None and setup.tuned != "head":
            raise ValueError(f"means: foretell the slopes of a head, got them with {setup.tuned!r}")
        self.log, self._means = list(log), means
        super().__init__(clients, fraction, min_clients, setup.request.seed)
        self._exchange = MezoExchange(setup, start, clients, self.log, replica, training)
        self._average = ScalarAverage(weighting, clip, outlier)
        self._average.restore(remembered)
        self.setup, self.replica, self.max_share = setup, replica, max_share
        self.on_round: Callable[[MezoRound], bool | None] | None = None
        replica.apply(self.log[replica.round :])
        guarded = learning_rate is None if guarded is None else guarded
        self._rate = LearningRate(learning_rate, guarded=guarded, rates=rates or {}, log=self.log)
        self._asked, self._void_rounds = MezoAnswers(), 0
        self._grid: Grid | None = None
        self.stalled_rounds = 0
        self._last: MezoRound | None = None

    @property
    def learning_rate(self) -> float | None:
        """As it is now, None where it is not known: a measured one is halved where steps are too long, for a while."""
        return self._rate.value

    @property
    def rates(self) -> dict[int, float]:
        """From every round in which the learning rate was changed to what it was from there on."""
        return self._rate.rates

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
        """Tell ``on_round`` of a round; whether training ends with it, also because the loss no longer changes."""
        if self.on_round is not None and self._last is not None and self.on_round(self._last):
            return True
        stalled = self.stalled_rounds >= STALLED_ROUNDS
        if stalled:
            logger.warning("FedMeZO ends after round %d: the loss no longer changes along any direction", len(self.log))
        return stalled

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Make the round's messages: its seed, and the updates that each client lacks."""
        self._grid, self._asked = grid, MezoAnswers()
        return self._exchange.messages(self._asked, self.begin_round(grid, server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the scalars and write the round's update into the log; no arrays, for none travel.

        Raises
        ------
        TooFewClients, TrainingDiverged
            See :meth:`SampledTraining.start`.
        """
        asked = self._asked
        self._exchange.collect(asked, replies, self._grid)
        usable, number_asked = asked.with_samples, len(self.participants(server_round))
        needed = self.needed(number_asked)
        weights = capped({client: answer.num_examples for client, answer in usable.items()}, self.max_share)
        weighed = {client: replace(answer, num_examples=weights[client]) for client, answer in usable.items()}
        averaged = Averaged((), (), {}, {})
        if len(usable) >= needed:
            averaged = self._average.take(weighed, self._foretold(server_round, weighed))
        how = "as large" if self._means is None else "as far from what its class counts foretell"
        for client, times in averaged.left_out.items():
            asked.failures[client] = f"its scalars are {times:.3g} times {how} as is usual (fedmezo.outlier)"
            del usable[client]
        enough = len(usable) >= needed
        self._void_rounds = 0 if enough else self._void_rounds + 1
        if self._void_rounds >= MAX_VOID_ROUNDS:
            raise TooFewClients(
                f"round {server_round}: {len(usable)} of {number_asked} clients sent usable scalars, {needed} are "
                f"needed (min-clients), and so for {MAX_VOID_ROUNDS} rounds; {asked.reasons()}"
            )
        if enough:
            self.stalled_rounds = 0 if any(averaged.means) else self.stalled_rounds + 1
        steps = self._rate.steps(server_round, averaged.means) if enough else (0.0,) * self.setup.num_directions
        update = Update(self._exchange.seed(server_round), steps)
        self.log.append(update)
        self.replica.apply([update])
        if not self.replica.is_finite:
            raise TrainingDiverged(f"round {server_round}: the parameters are not finite; choose a smaller rate")
        merged = {client: answer.num_examples for client, answer in usable.items()} if enough else {}
        seconds = time.perf_counter() - asked.started
        self._last = MezoRound(
            server_round, update, merged, averaged.clipped, averaged.left_out, asked, seconds, averaged.noted
        )
        return None, MetricRecord({"num-clients": len(merged), "num-failed": len(asked.failures)})

    def summary(self) -> None:
        """Log what is done."""
        logger.info("FedMeZO on %d clients: %s", len(self.clients), self.setup)

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """Give the tuned parameters of the server's replica; numpy, and so Flower, has no bfloat16."""
        tensors = {name: parameter.detach() for name, parameter in self.replica.parameters.items()}
        return to_record({name: one.float() if one.dtype == torch.bfloat16 else one for name, one in tensors.items()})

    # Questions to all clients that are no rounds

    def measure_learning_rate(self, grid: Grid, timeout: float | None = None) -> MezoAnswers:
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
        asked = self._ask(grid, "curvature", timeout)
        answers, needed = asked.with_samples, self.needed(len(self.clients))
        if len(answers) < needed:
            raise TooFewClients(
                f"{len(answers)} of {len(self.clients)} clients measured the loss's curvature, {needed} are needed "
                f"(min-clients); {asked.reasons()}"
            )

        def estimate(of: Mapping[int, MezoReply]) -> float:
            return statistics.fmean(self._average.mean(of))

        for client in deciding(answers, estimate) if self._average.outlier else ():
            asked.failures[client] = f"without it the others agree on over {DECIDES:g} times more or less"
            del answers[client]
        curvature = estimate(answers)
        if not curvature > 0.0:
            raise TrainingDiverged(
                f"the loss's curvature along {CURVATURE_DIRECTIONS} directions is {curvature:g}, from which no "
                "learning rate follows: give one (fedmezo.learning-rate), or a start that is less sure "
                "(fedmezo.temperature)"
            )
        self._rate.value = CURVATURE_SAFETY / curvature
        return asked

    def synchronise(self, grid: Grid, timeout: float | None = None) -> MezoAnswers:
        """Bring the replica of every client to the end of the log; those in ``answers`` have the right digest."""
        return self._ask(grid, "sync", timeout)

    def evaluation_messages(self, message_type: str) -> tuple[list[Message], MezoAnswers]:
        """Return a message of a type to every client, which brings it to the end of the log, and what that costs."""
        asked = MezoAnswers()
        messages = self._exchange.messages(asked, sorted(self.clients), message_type=message_type)
        self._exchange.note_following(self.clients)
        return messages, asked

    def _foretold(self, server_round: int, clients: Collection[int]) -> dict[int, tuple[float, ...]]:
        """Foretell the scalars of a round, of the clients of which something is known."""
        if self._means is None:
            return {}
        model = self.replica.model
        return self._means.slopes(
            clients,
            {name: model.get_parameter(name).detach() for name in (WEIGHT, BIAS)},
            self.replica.tangents(self._exchange.seed(server_round)),
            self.setup.request.temperature,
        )

    def _ask(self, grid: Grid, wanted: Wanted, timeout: float | None) -> MezoAnswers:
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid)
        return self._exchange.ask(grid, sorted(self.clients), wanted, timeout)


class FedMeZO(MezoRounds):
    """FedMeZO of a head on frozen features as a Flower Strategy, made and started as those of the closed forms are.

    Nodes answer with :func:`fedstats_app.client.own_replica.mezo_answer`; every node is one client.

    Parameters
    ----------
    num_classes : int
        C.
    num_z : int
        Directions of a round.
    epsilon : float
        Distance of the two evaluations from the model.
    seed : int
        Decides the directions, and which clients a round draws.
    min_clients : int
        With fewer usable answers a round changes nothing; as many nodes are waited for.
    wait_timeout, settle_seconds : float
        Seconds to wait for nodes, and without a new one before the training starts.
    **options
        `learning_rate`, `fraction`, `weighting`, `clip`, `outlier`, `max_share` of :class:`MezoRounds`.

    Raises
    ------
    ValueError
        If an option has another value.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_z: int = 1,
        epsilon: float = 1e-3,
        seed: int = 0,
        min_clients: int = 2,
        wait_timeout: float = 120.0,
        settle_seconds: float = 3.0,
        **options: Any,
    ) -> None:
        request = TrainingRequest(num_classes, "probe", seed=seed)
        self._plan = MezoSetup(request, epsilon=epsilon, num_directions=num_z)
        self._options = {"min_clients": min_clients, **options}
        self._wait_timeout, self._settle_seconds = wait_timeout, settle_seconds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 100,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Tune a head; ``result.arrays`` are its ``weight`` and ``bias``, as those of the start and of evaluate_fn.

        Parameters
        ----------
        grid : Grid
            Flower's.
        initial_arrays : ArrayRecord
            ``weight`` (C, d) and ``bias`` (C,) to start from, such as another strategy's ``result.arrays``.
        num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            As :meth:`SampledTraining.start`.

        Raises
        ------
        ValueError
            If the arrays are no head of these classes.
        TooFewClients, TrainingDiverged
            As :meth:`SampledTraining.start`.
        """
        given = (initial_arrays or ArrayRecord()).to_torch_state_dict()
        if given.keys() != {"weight", "bias"} or given["weight"].ndim != 2:
            raise ValueError(
                f"initial_arrays: must be weight (C, d) and bias (C,), got {', '.join(given) or 'nothing'}"
            )
        head = {f"head.{name}": tensor for name, tensor in given.items()}
        model = build_model(self._plan, head, nn.Identity(), given["weight"].shape[1], torch.device("cpu"))
        least, patience = self._options["min_clients"], self._settle_seconds
        nodes = wait_for_nodes(grid, least, wait_timeout=self._wait_timeout, settle_seconds=patience)
        replica = make_replica(self._plan, model)
        super().__init__(self._plan, head, dict.fromkeys(nodes), replica=replica, **self._options)
        result = super().start(grid, None, num_rounds, timeout, evaluate_fn=evaluate_fn)
        self.synchronise(grid, timeout)
        return result

    def shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """As the base, by the names of the start."""
        return ArrayRecord({name.removeprefix("head."): array for name, array in super().shown(arrays).items()})
