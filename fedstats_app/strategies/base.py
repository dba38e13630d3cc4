"""The Strategy of all closed-form methods: ask each client once, fold replies in client order, solve."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedstats_app.grid.asking import first_reasons
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients, wait_for_nodes
from fedstats_app.methods import ConfiguredMethod
from fedstats_app.statistics import merge_specs
from fedstats_app.statistics.share_caps import ShareCaps
from fedstats_app.strategies.rounds import WithoutEvaluation
from fedstats_app.strategies.served import ServedMethods
from fedstats_app.wire import QUERY_STATISTICS, Limits, StatisticsRequest

logger = logging.getLogger("fedstats_app")


class StatisticsStrategy(ServedMethods, WithoutEvaluation):
    """Serves one or several methods from one upload per client: the union of what they need.

    ``start`` works with any Grid: with Flower's own every node is a client; with a :class:`ClientGrid` clients are what
    it says. What can be read afterwards is that of :class:`ServedMethods`.

    Parameters
    ----------
    num_classes : int
        C, the same on all clients.
    methods : sequence of ConfiguredMethod
        At least one, of different names.
    feature_dim : int, optional
        d of the backbone; replies with another are refused. By default that of the first valid reply: give it
        wherever a node might send something else, since one reply of another d would have all others refused.
    num_clients : int, optional
        How many nodes to wait for; by default all that are there once no new one has come for ``settle_seconds``.
    min_clients : int
        Fewer merged clients than this are an error at the end of the last round.
    fraction_train : float
        Share of the clients asked per round, without replacement: ``ceil(1 / fraction_train)`` rounds cover all.
    seed : int
        Draws the clients of a round, and which samples share a mean where there are several per class.
    wire_dtype : {"float32", "float64"}
        Of sums and Gram matrices on the wire; they are added in float64 in any case.
    backbone_fingerprint : str
        If given, replies must carry the same.
    class_names : sequence of str
        If given, sent along, so that clients can align their own class lists by name.
    holdout : float
        Share of its samples that a client is asked to keep for evaluation.
    limits : Limits
        Beyond which no honest client's statistics are: the norm of the backbone's features and samples of a client.
        Replies beyond them are rejected. By default hardly anything is.
    caps : ShareCaps
        Of a client's share of a class and of all samples; by default there are none.
    wait_timeout, settle_seconds, reply_timeout : float
        Seconds to wait for nodes, for no new one to come, and for a reply.
    window_bytes : int
        Replies outstanding at a time, in bytes.

    Raises
    ------
    ValueError
        Without methods, with two of one name, with methods that one pass cannot serve, or an option out of range.
    """

    def __init__(
        self,
        num_classes: int,
        methods: Sequence[ConfiguredMethod],
        *,
        feature_dim: int | None = None,
        num_clients: int | None = None,
        min_clients: int = 1,
        fraction_train: float = 1.0,
        seed: int = 0,
        wire_dtype: str = "float32",
        backbone_fingerprint: str = "",
        class_names: tuple[str, ...] = (),
        holdout: float = 0.0,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        caps: ShareCaps = ShareCaps(),  # noqa: B008  # frozen
        wait_timeout: float = 120.0,
        settle_seconds: float = 3.0,
        reply_timeout: float = 600.0,
        window_bytes: int = 128 * 2**20,
    ) -> None:
        if not methods or len({method.name for method in methods}) != len(methods):
            raise ValueError(
                f"there must be at least one method, of different names, got {[one.name for one in methods]}"
            )
        if not 0.0 < fraction_train <= 1.0:
            raise ValueError(f"fraction_train must lie in (0, 1], got {fraction_train}")
        if min_clients < 1:
            raise ValueError(f"min_clients must be at least 1, got {min_clients}")
        specs = merge_specs(method.specification for method in methods)
        request = StatisticsRequest(
            num_classes,
            specs,
            wire_dtype,
            seed=seed,
            backbone_fingerprint=backbone_fingerprint,
            class_names=tuple(class_names),
            holdout=holdout,
        )
        super().__init__(methods, request, feature_dim, limits, caps)
        self.num_clients, self.min_clients, self.fraction_train = num_clients, min_clients, fraction_train
        self.seed, self.window_bytes = seed, window_bytes
        self.wait_timeout, self.settle_seconds, self.reply_timeout = wait_timeout, settle_seconds, reply_timeout
        self._asked: set[int] = set()

    @property
    def num_rounds(self) -> int:
        """Rounds after which every client was asked."""
        return math.ceil(1 / self.fraction_train)

    # Flower's Strategy

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
        """Run all rounds and return Flower's Result, whose ``arrays`` are the head (``weight`` and ``bias``).

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`ClientGrid`.
        initial_arrays : ArrayRecord, optional
            Not used: there is nothing to start from.
        num_rounds : int, optional
            By default as many as cover all clients.
        timeout : float, optional
            Seconds for each round, beside the limit of every request; none by default.
        train_config, evaluate_config, evaluate_fn
            As Flower's.

        Raises
        ------
        TooFewClients
            If fewer than ``min_clients`` came or were merged.
        """
        if not isinstance(grid, ClientGrid):
            wait_for_nodes(
                grid,
                max(self.min_clients - self.collection.num_merged, 1),
                expected=self.num_clients,
                wait_timeout=self.wait_timeout,
                settle_seconds=self.settle_seconds,
            )
            grid = ClientGrid(
                grid,
                reply_timeout=self.reply_timeout,
                window_bytes=self.window_bytes,
                expected_reply_bytes=self.expected_reply_bytes,
            )
        result = super().start(
            grid,
            initial_arrays if initial_arrays is not None else ArrayRecord(),
            num_rounds if num_rounds is not None else self.num_rounds,
            timeout,  # type: ignore[arg-type]  # Flower declares float but passes None on to a Grid, which takes it
            train_config,
            evaluate_config,
            evaluate_fn,
        )
        if self.collection.num_merged < self.min_clients or not any(outcome.in_heads for outcome in self.outcomes):
            raise TooFewClients(
                f"{self.collection.num_merged} of {len(self._asked)} clients were merged, "
                f"{self.min_clients} are needed (min-clients); {self._first_reasons()}"
            )
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one request for each client of this round: those not asked yet, drawn by (seed, round).

        A client that was asked before the run was interrupted belongs to its round, but is not asked again.
        """
        clients = sorted(grid.get_node_ids())
        left = [client for client in clients if client not in self._asked]
        size = min(math.ceil(len(clients) * self.fraction_train), len(left))
        if size < len(left):
            draw = np.random.default_rng([self.seed, server_round])
            left = sorted(int(client) for client in draw.choice(np.array(left, dtype=object), size, replace=False))
        self._asked.update(left)
        content, answered = replace(self.request, server_round=server_round).to_content(), self.answered
        return [
            Message(content, dst_node_id=client, message_type=QUERY_STATISTICS, group_id=str(server_round))
            for client in left
            if client not in answered
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold replies in the order they come (a :class:`ClientGrid` yields them in client order), and solve."""
        for reply in replies:
            outcome, received = self.collection.fold(server_round, reply)
            if self.on_reply is not None:
                self.on_reply(outcome, received)
            del reply, received  # frees the reply before the next is made
        if not self.collection.num_merged:
            return None, None
        self.solve()
        of_round = [outcome for outcome in self.outcomes if outcome.server_round == server_round]
        metrics = MetricRecord(
            {
                "num-clients": self.collection.num_merged,
                "num-failed": sum(not outcome.in_heads for outcome in of_round),
                "num-examples": self.collection.num_examples,
                "wire-bytes": self.collection.total_wire_bytes,
            }
        )
        return self._arrays(), metrics

    def summary(self) -> None:
        """Log what is asked for."""
        logger.info("methods %s, %d rounds, %s", ", ".join(self._methods), self.num_rounds, self.request)

    def _first_reasons(self) -> str:
        failed = [outcome for outcome in self.outcomes if not outcome.in_heads]
        return first_reasons([f"client {one.client} {one.outcome}: {one.reason}" for one in failed])
