"""The Strategy of all closed-form methods: ask each client once, fold replies in client order, solve."""

from __future__ import annotations

import functools
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypedDict

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedstats_app.base.threads import beside_each_other, threads_worth
from fedstats_app.grid.asking import array_bytes, first_reasons
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.collection import ClientOutcome, Collection
from fedstats_app.grid.discovery import TooFewClients, wait_for_nodes
from fedstats_app.heads import LinearHead
from fedstats_app.heads.scatter import SummedRows
from fedstats_app.methods import Method
from fedstats_app.methods.method import FEW_FEATURES
from fedstats_app.statistics import merge_specs
from fedstats_app.statistics.collected import CollectedStatistics, StatisticsSum
from fedstats_app.statistics.exact import fraction_bits
from fedstats_app.wire import QUERY_STATISTICS, Limits, ReceivedStatistics, StatisticsRequest
from fedstats_app.wire.arrays import NUMBER_BYTES, to_array
from fedstats_app.wire.reading import MAX_COUNT

logger = logging.getLogger("fedstats_app")


class OwnRounds(Strategy):
    """A Strategy with a loop of its own in ``start``, whose clients evaluate as those of Flower's FedAvg do."""

    num_clients: int | None
    wait_timeout: float
    settle_seconds: float
    reply_timeout: float = 600.0

    def connected(self, grid: Grid, minimum: int, **options: Any) -> ClientGrid:
        """Wait for nodes, if the grid is Flower's own, and return a Grid whose clients they are, with these options."""
        if isinstance(grid, ClientGrid):
            return grid
        timeouts = {"wait_timeout": self.wait_timeout, "settle_seconds": self.settle_seconds}
        wait_for_nodes(grid, minimum, expected=self.num_clients, **timeouts)
        return ClientGrid(grid, reply_timeout=self.reply_timeout, **options)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Make a message for every client's ``@app.evaluate()``, as Flower's FedAvg does."""
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})})
        return [Message(content, dst_node_id=node, message_type="evaluate") for node in sorted(grid.get_node_ids())]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics' means, weighted with ``num-examples``, as Flower's FedAvg does."""
        return FedAvg().aggregate_evaluate(server_round, replies)

    def evaluate(
        self, result: Result, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> None:
        """Let the clients evaluate arrays, and note the metrics in the result."""
        grid = grid if isinstance(grid, ClientGrid) else ClientGrid(grid, reply_timeout=self.reply_timeout)
        replies = grid.send_and_receive(self.configure_evaluate(server_round, arrays, config, grid))
        metrics = self.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            result.evaluate_metrics_clientapp[server_round] = metrics

    def refuse_noise(self) -> None:
        """Refuse Flower's wrappers for differential privacy as callers; of a caller only its frame is known.

        Raises
        ------
        TypeError
            If one calls.
        """
        for frame, _ in traceback.walk_stack(None):
            wrapper = type(frame.f_locals.get("self")).__name__
            if wrapper.startswith("DifferentialPrivacy"):
                raise TypeError(
                    f"{wrapper} makes nothing private here: it adds noise to what {type(self).__name__} returns, and "
                    "what clients send is in clear; use dp-epsilon of this app (docs/security.md)"
                )


class StrategyOptions(TypedDict, total=False):
    """The keyword arguments of :class:`StatisticsStrategy`, for the Strategies that pass them on."""

    feature_dim: int | None
    num_clients: int | None
    min_clients: int
    seed: int
    wire_dtype: str
    backbone_fingerprint: str
    class_names: tuple[str, ...]
    holdout: float
    limits: Limits
    client_names: Mapping[int, str]
    exact_samples: int
    targets: str
    only_targets: bool
    wait_timeout: float
    settle_seconds: float
    reply_timeout: float
    window_bytes: int


class StatisticsStrategy(OwnRounds):
    """Serves one or several methods from one upload per client: the union of what they need.

    ``start`` works with any Grid: with Flower's own every node is a client; with a :class:`ClientGrid` clients are what
    it says.

    Parameters
    ----------
    num_classes : int
        C, the same on all clients.
    methods : sequence of Method
        At least one, of different names.
    feature_dim : int, optional
        d of the backbone; replies with another are refused. By default that of the first valid reply: give it
        wherever a node might send something else, since one reply of another d would have all others refused.
    num_clients : int, optional
        How many nodes to wait for; by default all that are there once no new one has come for ``settle_seconds``.
    min_clients : int
        Fewer merged clients than this are an error.
    seed : int
        Draws which samples share a mean where there are several per class.
    wire_dtype : {"float16", "float32", "float64"}
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
    client_names : mapping
        From client to a name by which its data are known again when they have changed; others have none.
    exact_samples : int
        Samples of all clients together for which sums are exact: features are rounded, float64 travels, and heads
        have the same bits for any split. 0 for sums of the features as they are.
    targets : {"", "labels", "numbers"}
        What the classes name if not one class a sample: several labels, or numbers.
    only_targets : bool
        Ask for sums by target alone, of samples whose other statistics are in those to extend.
    wait_timeout, settle_seconds, reply_timeout : float
        Seconds to wait for nodes, for no new one to come, and for a reply.
    window_bytes : int
        Replies outstanding at a time, in bytes.

    Attributes
    ----------
    heads : dict of str to LinearHead
        By method, as last solved.
    solve_seconds : dict of str to float
        Of the last solve.
    collection : Collection
        The merged statistics.
    on_reply : callable or None
        Called once per client as its reply is merged, for example to print progress.

    Raises
    ------
    ValueError
        Without methods, with two of one name, with methods that one pass cannot serve, or an option out of range.

    Examples
    --------
    >>> from fedstats_app.methods import METHODS
    >>> StatisticsStrategy(10, [METHODS["fedncm"].default(), METHODS["fed3r"].default()])
    StatisticsStrategy(10, methods=['fedncm', 'fed3r'])
    """

    def __init__(
        self,
        num_classes: int,
        methods: Sequence[Method[Any]],
        *,
        feature_dim: int | None = None,
        num_clients: int | None = None,
        min_clients: int = 1,
        seed: int = 0,
        wire_dtype: str = "float32",
        backbone_fingerprint: str = "",
        class_names: tuple[str, ...] = (),
        holdout: float = 0.0,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        client_names: Mapping[int, str] = MappingProxyType({}),
        exact_samples: int = 0,
        targets: str = "",
        only_targets: bool = False,
        wait_timeout: float = 120.0,
        settle_seconds: float = 3.0,
        reply_timeout: float = 600.0,
        window_bytes: int = 128 * 2**20,
    ) -> None:
        if not methods or len({method.full_name for method in methods}) != len(methods):
            raise ValueError(
                f"there must be at least one method, of different names, got {[method.full_name for method in methods]}"
            )
        if min_clients < 1:
            raise ValueError(f"min_clients must be at least 1, got {min_clients}")
        spec = merge_specs(method.specification for method in methods)
        spec = replace(spec, targets=targets)
        if exact_samples:
            spec = replace(spec, fraction_bits=fraction_bits(exact_samples, limits.norm, squares=spec.gram))
        self.request = StatisticsRequest(
            num_classes,
            spec,
            "float64" if exact_samples else wire_dtype,
            seed=seed,
            backbone_fingerprint=backbone_fingerprint,
            class_names=tuple(class_names),
            holdout=holdout,
        )
        self._spec = self.request.spec
        if only_targets:
            self.request = replace(self.request, spec=replace(spec, gram=False, scatter=None, means_per_class=1))
        self._methods = {method.full_name: method for method in methods}
        self.num_classes, self.feature_dim, self._limits = num_classes, feature_dim, limits
        self.num_clients, self.min_clients = num_clients, min_clients
        self.window_bytes, self._client_names = window_bytes, dict(client_names)
        self.wait_timeout, self.settle_seconds, self.reply_timeout = wait_timeout, settle_seconds, reply_timeout
        self.extend(None)
        self.heads: dict[str, LinearHead] = {}
        # What takes the place of rows that no one sees.
        self._summed_rows: SummedRows | None = None
        self.solve_seconds: dict[str, float] = {}
        self.on_reply: Callable[[ClientOutcome, ReceivedStatistics | None], None] | None = None

    def __repr__(self) -> str:
        """Return the class, the number of classes and the methods."""
        return f"{type(self).__name__}({self.num_classes}, methods={list(self._methods)})"

    def extend(self, earlier: CollectedStatistics | None) -> None:
        """Start from the statistics of earlier runs, to which the clients of this one are added.

        A client whose very statistics are among them is not counted twice. Call it before ``start``.

        Parameters
        ----------
        earlier : CollectedStatistics or None
            Of the same backbone, specification and classes (:meth:`CollectedStatistics.with_class_names`).

        Raises
        ------
        ValueError
            If they are of another kind; the message says what was and what is.
        """
        keep_rows = any(method.keeps_rows for method in self._methods.values())
        self.collection = Collection(
            self.request, keep_rows, self.feature_dim, earlier, self._limits, self._client_names, self._spec
        )

    def methods(self) -> Mapping[str, Method[Any]]:
        """Return the methods served, by name."""
        return self._methods

    @property
    def outcomes(self) -> list[ClientOutcome]:
        """One per client asked, in the order of the clients."""
        return self.collection.outcomes

    @property
    def expected_reply_bytes(self) -> int:
        """Upper bound of a reply's size, for a :class:`ClientGrid` that has seen none; 1 MiB where d is not known."""
        if self.feature_dim is None:
            return 2**20
        size = NUMBER_BYTES[self.request.wire_dtype]
        return self.request.spec.num_bytes(MAX_COUNT, self.num_classes, self.feature_dim, size)

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

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed: what it alone would have cost."""
        return self.collection.wire_bytes(self._methods[method].specification)

    def collect(self, grid: Grid, timeout: float | None = None) -> None:
        """Ask every client once, and fold the replies; nothing is solved.

        Parameters
        ----------
        grid : Grid
            Flower's, or a :class:`ClientGrid`.
        timeout : float, optional
            Seconds, beside the limit of every request; none by default.

        Raises
        ------
        TooFewClients
            If fewer than ``min_clients`` came or were merged.
        """
        sizes = {"window_bytes": self.window_bytes, "expected_reply_bytes": self.expected_reply_bytes}
        needed = max(self.min_clients - self.collection.num_merged, 1)  # beside those of a run to extend
        grid = self.connected(grid, needed, **sizes)
        messages = self.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
        self._fold(grid.send_and_receive(messages, timeout=timeout))
        failed = [
            f"site {outcome.client} {outcome.outcome}: {outcome.reason}"
            for outcome in self.outcomes
            if not outcome.in_heads
        ]
        if self.collection.num_merged < self.min_clients or len(failed) == len(self.outcomes):
            raise TooFewClients(
                f"{len(self.outcomes) - len(failed)} of {len(self.outcomes)} sites were merged, {needed} are needed "
                f"(min-clients); {first_reasons(failed)}"
            )

    def _fold(self, replies: Iterable[Message]) -> None:
        """Fold replies in the order they come; a :class:`ClientGrid` yields them in client order."""
        for reply in replies:
            with threads_worth(array_bytes(reply.content) if reply.has_content() else 0):
                outcome, received = self.collection.fold(reply)
                if self.on_reply is not None:
                    self.on_reply(outcome, received)
            del reply, received  # frees the reply before the next is made

    def solve(
        self, total: StatisticsSum | None = None, methods: Mapping[str, Method[Any]] | None = None
    ) -> dict[str, LinearHead]:
        """Solve for every method's head.

        Parameters
        ----------
        total : StatisticsSum, optional
            Over clients; by default what was collected, whose heads stay in ``heads``.
        methods : mapping, optional
            Methods by name; by default the strategy's.
        """
        chosen = self._methods if methods is None else methods
        summed = self.collection.total if total is None else total
        # Made once, before several look at them.
        if summed.keeps_rows:
            summed.rows()
        if summed.has_gram:
            summed.shared()
        jobs = [functools.partial(_timed, method.head, summed, self._summed_rows) for method in chosen.values()]
        # One head of many features takes all threads itself.
        solved = beside_each_other(jobs) if summed.feature_dim <= FEW_FEATURES else (job() for job in jobs)
        heads, seconds = {}, {}
        for name, (head, took) in zip(chosen, solved, strict=True):
            heads[name], seconds[name] = head, took
        if total is None:
            self.heads, self.solve_seconds = heads, seconds
        return heads

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
        """Ask every client once, solve, and return Flower's Result, whose ``arrays`` are the head's weight and bias.

        Parameters
        ----------
        grid, timeout
            As of :meth:`collect`.
        evaluate_config : ConfigRecord, optional
            Entries of the config with which every client's ``@app.evaluate()`` scores the head, as with Flower's
            FedAvg; without it no client is asked.
        evaluate_fn : callable, optional
            As Flower's.
        initial_arrays, num_rounds, train_config
            Not used: there is nothing to start from, and one round.

        Raises
        ------
        TooFewClients
            If fewer than ``min_clients`` came or were merged.
        """
        self.collect(grid, timeout)
        arrays, metrics = self.aggregate_train(1, ())
        result = Result()
        if arrays is None or metrics is None:
            return result
        result.arrays, result.train_metrics_clientapp[1] = arrays, metrics
        if evaluate_fn is not None and (scores := evaluate_fn(1, arrays)) is not None:
            result.evaluate_metrics_serverapp[1] = scores
        if evaluate_config is not None:
            self.evaluate(result, 1, arrays, evaluate_config, grid)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Make a request for each client that was not asked before."""
        self.refuse_noise()
        known = {outcome.client for outcome in self.outcomes}
        content = replace(self.request, server_round=server_round).to_content()
        return [
            Message(content, dst_node_id=client, message_type=QUERY_STATISTICS, group_id=str(server_round))
            for client in sorted({*grid.get_node_ids()} - known)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold replies, and solve."""
        self._fold(replies)
        if not self.collection.num_merged:
            return None, None
        self.solve()
        metrics = MetricRecord(
            {
                "num-clients": self.collection.num_merged,
                "num-failed": sum(not outcome.in_heads for outcome in self.outcomes),
                "num-examples": self.collection.num_examples,
                "wire-bytes": self.collection.total_wire_bytes,
            }
        )
        arrays = {}
        for name, head in self.heads.items():
            prefix = "" if len(self._methods) == 1 else f"{name}."
            arrays[f"{prefix}weight"], arrays[f"{prefix}bias"] = to_array(head.weight), to_array(head.bias)
        return ArrayRecord(arrays), metrics

    def summary(self) -> None:
        """Log what is asked for."""
        logger.info("methods %s, %s", ", ".join(self._methods), self.request)


def _timed(
    solve: Callable[[StatisticsSum, SummedRows | None], LinearHead], total: StatisticsSum, rows: SummedRows | None
) -> tuple[LinearHead, float]:
    started = time.perf_counter()
    return solve(total, rows), time.perf_counter() - started
