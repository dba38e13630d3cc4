"""What a strategy of closed-form methods asks for, has collected and has solved; apart from when it asks whom."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import ArrayRecord

from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.grid.collection import Collection
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead
from fedstats_app.methods import ConfiguredMethod
from fedstats_app.methods.method import FEW_FEATURES
from fedstats_app.statistics import ClientSize, CollectedStatistics, StatisticsSum
from fedstats_app.statistics.share_caps import ShareCaps
from fedstats_app.threads import beside_each_other
from fedstats_app.wire import Limits, ReceivedStatistics, StatisticsRequest
from fedstats_app.wire.arrays import NUMBER_BYTES, to_array
from fedstats_app.wire.reading import MAX_COUNT


class ServedMethods:
    """One or several methods, the request that covers what they need, and what came of it.

    Parameters
    ----------
    methods : sequence of ConfiguredMethod
        At least one, of different names.
    request : StatisticsRequest
        Its specifications cover those of the methods.
    feature_dim : int or None
        d of the backbone, None where the first valid reply says it.
    limits : Limits
        Replies beyond them are rejected.
    caps : ShareCaps
        Of what one client counts for.

    Attributes
    ----------
    heads : dict of str to LinearHead
        By method, as last solved.
    solve_seconds : dict of str to float
        Of the last solve.
    collection : Collection
        The merged statistics.
    on_reply : callable or None
        For whoever wants to see each client as it is folded: progress lines, a plot of label counts.
    """

    def __init__(
        self,
        methods: Sequence[ConfiguredMethod],
        request: StatisticsRequest,
        feature_dim: int | None = None,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        caps: ShareCaps = ShareCaps(),  # noqa: B008  # frozen
    ) -> None:
        self._methods = {method.name: method for method in methods}
        self.request, self.num_classes, self.feature_dim = request, request.num_classes, feature_dim
        self._limits, self._caps = limits, caps
        self.collection = Collection(request, self._keep_rows, feature_dim, limits=limits, caps=caps)
        self.heads: dict[str, LinearHead] = {}
        self.solve_seconds: dict[str, float] = {}
        self.on_reply: Callable[[ClientOutcome, ReceivedStatistics | None], None] | None = None

    def methods(self) -> Mapping[str, ConfiguredMethod]:
        """Return the methods served, by name."""
        return self._methods

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
        self.collection = Collection(self.request, self._keep_rows, self.feature_dim, earlier, self._limits, self._caps)

    @property
    def _keep_rows(self) -> list[bool]:
        return [
            any(one.keeps_rows and spec.covers(one.specification) for one in self._methods.values())
            for spec in self.request.specs
        ]

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
    def answered(self) -> set[int]:
        """The clients of which it is known what became of them."""
        return {outcome.client for outcome in self.outcomes}

    @property
    def expected_reply_bytes(self) -> int:
        """Upper bound of a reply's size, for a :class:`ClientGrid` that has seen none; 1 MiB where d is not known."""
        if self.feature_dim is None:
            return 2**20
        size = NUMBER_BYTES[self.request.wire_dtype]
        largest = [ClientSize(MAX_COUNT, self.num_classes)]
        return sum(spec.num_bytes(largest, self.feature_dim, size) for spec in self.request.specs)

    def statistics(self, method: str | None = None) -> StatisticsSum:
        """Return the merged statistics that a method (by default the first) is solved from."""
        return self.collection.statistics(self.spec_index(method if method is not None else next(iter(self._methods))))

    def spec_index(self, method: str) -> int:
        """Return which of the request's specifications serves a method."""
        wanted = self._methods[method].specification
        return next(index for index, spec in enumerate(self.request.specs) if spec.covers(wanted))

    @property
    def indexed_heads(self) -> dict[str, tuple[int, LinearHead]]:
        """The heads as they are sent to be scored: by method, with which of the request's specifications serves it."""
        return {name: (self.spec_index(name), head) for name, head in self.heads.items()}

    def wire_bytes(self, method: str) -> int:
        """Return the bytes, of all that was received, that a method needed: what it alone would have cost."""
        return self.collection.wire_bytes(self.spec_index(method), self._methods[method].specification)

    def solve(self) -> None:
        """Solve every method from what was collected so far."""
        totals = {name: self.statistics(name) for name in self._methods}
        for total in totals.values():
            if total.keeps_rows:
                total.rows()  # stacked once, before several look at them
        jobs = {name: functools.partial(self._methods[name].solve, total) for name, total in totals.items()}
        if len(jobs) > 1 and all(total.feature_dim <= FEW_FEATURES for total in totals.values()):
            timed = beside_each_other([functools.partial(_timed, job) for job in jobs.values()])
            for name, (head, seconds) in zip(jobs, timed, strict=True):
                self.heads[name], self.solve_seconds[name] = head, seconds
            return
        for name, job in jobs.items():
            started = time.perf_counter()
            self.heads[name], self.solve_seconds[name] = job(), time.perf_counter() - started

    def _arrays(self) -> ArrayRecord:
        """Return the head as ``weight`` and ``bias``, with the method's name in front if there are several."""
        arrays = {}
        for name, head in self.heads.items():
            prefix = "" if len(self._methods) == 1 else f"{name}."
            arrays[f"{prefix}weight"] = to_array(head.weight)
            arrays[f"{prefix}bias"] = to_array(head.bias)
        return ArrayRecord(arrays)


def _timed(solve: Callable[[], LinearHead]) -> tuple[LinearHead, float]:
    started = time.perf_counter()
    return solve(), time.perf_counter() - started
