"""The Strategy that every one-pass method shares: ask each client once, fold replies in client order, solve."""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedstats_app.grid.asking import first_reasons
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.collection import Collection
from fedstats_app.grid.discovery import TooFewClients, wait_for_nodes
from fedstats_app.heads import LinearHead
from fedstats_app.outcomes.client_outcome import ClientOutcome
from fedstats_app.statistics import CollectedStatistics, StatisticsSpec, StatisticsSum, merge_specs
from fedstats_app.wire import QUERY_STATISTICS, ReceivedStatistics, StatisticsRequest
from fedstats_app.wire.arrays import WIRE_DTYPES, to_array

logger = logging.getLogger("fedstats_app")


class StatisticsStrategy(Strategy):
    """Base of the strategies that need one upload per client and a closed-form solve.

    A subclass gives ``name``, ``specification`` and ``solve``. ``start`` works with any Grid: with Flower's own every
    node is a client; with a :class:`ClientGrid` clients are what it says.

    Parameters
    ----------
    num_classes : int
        C, the same on all clients.
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
    wait_timeout, settle_seconds, reply_timeout : float
        Seconds to wait for nodes, for no new one to come, and for a reply.
    window_bytes : int
        Replies outstanding at a time, in bytes.

    Attributes
    ----------
    heads : dict of str to LinearHead
        By method, after the last round.
    collection : Collection
        The merged statistics.
    solve_seconds : dict of str to float
        Of the last round.
    """

    name = ""

    def __init__(
        self,
        num_classes: int,
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
        wait_timeout: float = 120.0,
        settle_seconds: float = 3.0,
        reply_timeout: float = 600.0,
        window_bytes: int = 128 * 2**20,
    ) -> None:
        if not 0.0 < fraction_train <= 1.0:
            raise ValueError(f"fraction_train must lie in (0, 1], got {fraction_train}")
        if min_clients < 1:
            raise ValueError(f"min_clients must be at least 1, got {min_clients}")
        self.num_classes, self.feature_dim, self.num_clients = num_classes, feature_dim, num_clients
        self.min_clients, self.fraction_train, self.seed = min_clients, fraction_train, seed
        self.wait_timeout, self.settle_seconds, self.reply_timeout = wait_timeout, settle_seconds, reply_timeout
        self.window_bytes = window_bytes
        self.request = StatisticsRequest(
            num_classes,
            merge_specs(method.specification for method in self.methods().values()),
            wire_dtype,
            seed=seed,
            backbone_fingerprint=backbone_fingerprint,
            class_names=tuple(class_names),
            holdout=holdout,
        )
        self.collection = Collection(self.request, self._keep_rows, feature_dim)
        self.heads: dict[str, LinearHead] = {}
        self.solve_seconds: dict[str, float] = {}
        # A hook for whoever wants to see each client as it is folded: progress lines, a plot of label counts.
        self.on_reply: Callable[[ClientOutcome, ReceivedStatistics | None], None] | None = None
        self._asked: set[int] = set()

    # What a method defines

    @property
    @abstractmethod
    def specification(self) -> StatisticsSpec:
        """Which statistics the method needs."""

    @abstractmethod
    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the head from the merged statistics."""

    @property
    def keeps_rows(self) -> bool:
        """Whether ``solve`` needs every client's rows, not only their sum."""
        return False

    def methods(self) -> Mapping[str, StatisticsStrategy]:
        """Return the methods served by this pass, by name: here, itself."""
        return {self.name: self}

    def extend(self, earlier: CollectedStatistics) -> None:
        """Start from the statistics of earlier runs, to which the clients of this one are added.

        A client whose very statistics are among them is not counted twice. Call it before ``start``.

        Parameters
        ----------
        earlier : CollectedStatistics
            Of the same backbone, specifications and classes (:meth:`CollectedStatistics.with_class_names`).

        Raises
        ------
        ValueError
            If they are of another kind; the message says what was and what is.
        """
        self.collection = Collection(self.request, self._keep_rows, self.feature_dim, earlier)

    @property
    def _keep_rows(self) -> list[bool]:
        return [
            any(method.keeps_rows and spec.covers(method.specification) for method in self.methods().values())
            for spec in self.request.specs
        ]

    # What users read afterwards

    @property
    def head(self) -> LinearHead:
        """The head, of the first method if there are several.

        Raises
        ------
        TooFewClients
            If no client was merged yet.
        """
        if not self.heads:
            raise TooFewClients("there is no head: no client's statistics were merged")
        return next(iter(self.heads.values()))

    @property
    def outcomes(self) -> list[ClientOutcome]:
        """One per client asked, in the order of rounds and clients."""
        return self.collection.outcomes

    @property
    def num_rounds(self) -> int:
        """Rounds after which every client was asked."""
        return math.ceil(1 / self.fraction_train)

    @property
    def expected_reply_bytes(self) -> int:
        """Upper bound of a reply's size, for a :class:`ClientGrid` that has seen none; 1 MiB where d is not known."""
        if self.feature_dim is None:
            return 2**20
        size = torch.finfo(WIRE_DTYPES[self.request.wire_dtype]).bits // 8
        total = 0
        for spec in self.request.specs:
            dim = spec.feature_map.output_dim(self.feature_dim)
            rows = self.num_classes * spec.means_per_class
            # Each row has a class id and a count of 8 bytes, each array a header of 128.
            total += rows * (16 + size * dim) + (size * dim * (dim + 1) // 2 if spec.gram else 0) + 4 * 128
        return total

    def statistics(self, method: str | None = None) -> StatisticsSum:
        """Return the merged statistics that a method (by default the first) is solved from."""
        return self.collection.statistics(self.spec_index(method if method is not None else next(iter(self.methods()))))

    def spec_index(self, method: str) -> int:
        """Return which of the request's specifications serves a method."""
        wanted = self.methods()[method].specification
        return next(index for index, spec in enumerate(self.request.specs) if spec.covers(wanted))

    @property
    def indexed_heads(self) -> dict[str, tuple[int, LinearHead]]:
        """The heads as they are sent to be scored: by method, with which of the request's specifications serves it."""
        return {name: (self.spec_index(name), head) for name, head in self.heads.items()}

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed: what it alone would have cost."""
        return self.collection.wire_bytes(self.spec_index(method), self.methods()[method].specification)

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
        """Return one request for each client of this round: those not asked yet, drawn by (seed, round)."""
        clients = sorted(grid.get_node_ids())
        left = [client for client in clients if client not in self._asked]
        size = min(math.ceil(len(clients) * self.fraction_train), len(left))
        if size < len(left):
            draw = np.random.default_rng([self.seed, server_round])
            left = sorted(int(client) for client in draw.choice(np.array(left, dtype=object), size, replace=False))
        self._asked.update(left)
        content = replace(self.request, server_round=server_round).to_content()
        return [
            Message(content, dst_node_id=client, message_type=QUERY_STATISTICS, group_id=str(server_round))
            for client in left
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
        for name, method in self.methods().items():
            started = time.perf_counter()
            self.heads[name] = method.solve(self.statistics(name))
            self.solve_seconds[name] = time.perf_counter() - started
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return nothing: heads are evaluated after the last round."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing."""
        return None

    def summary(self) -> None:
        """Log what is asked for."""
        logger.info("methods %s, %d rounds, %s", ", ".join(self.methods()), self.num_rounds, self.request)

    def _arrays(self) -> ArrayRecord:
        """Return the head as ``weight`` and ``bias``, with the method's name in front if there are several."""
        arrays = {}
        for name, head in self.heads.items():
            prefix = "" if len(self.methods()) == 1 else f"{name}."
            arrays[f"{prefix}weight"] = to_array(head.weight)
            arrays[f"{prefix}bias"] = to_array(head.bias)
        return ArrayRecord(arrays)

    def _first_reasons(self) -> str:
        failed = [outcome for outcome in self.outcomes if not outcome.in_heads]
        return first_reasons([f"client {one.client} {one.outcome}: {one.reason}" for one in failed])
