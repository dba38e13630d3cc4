"""The strategy whose statistics are sums with noise: secure sums of the sites' shares of it, or each site's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead
from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.methods import Method, cannot_be_noisy
from fedstats_app.secure.account import Promise
from fedstats_app.secure.masks import Words
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout
from fedstats_app.strategies.secure_sums import Account, MaskedRun, SecureStatisticsStrategy
from fedstats_app.wire.secure import NOISY_SUMS, NoisyRequest, clear_content, question_text


class NoisyStatisticsStrategy(SecureStatisticsStrategy):
    """Serves methods that are solved from sums with noise.

    Parameters
    ----------
    promise : Promise
        Of which the noise is.
    num_classes, methods, options
        Of :class:`SecureStatisticsStrategy`; the heads are on features of length 1 (``feature-map`` "unit").

    Raises
    ------
    ValueError
        If a method cannot be solved from them.
    """

    def __init__(self, num_classes: int, methods: Sequence[Method[Any]], *, promise: Promise, **options: Any) -> None:
        for method in methods:
            if reason := cannot_be_noisy(method):
                raise ValueError(f"dp-epsilon: {reason}")
        super().__init__(num_classes, methods, exact_samples=promise.num_samples, **options)
        self._promise = promise
        self._noisy: NoisyStatistics | None = None

    @property
    def noisy(self) -> NoisyStatistics:
        """All that was learned of the data.

        Raises
        ------
        ValueError
            Before the sums were unmasked.
        """
        if self._noisy is None:
            raise ValueError("there are no sums with noise yet")
        return self._noisy

    def _sum(self, grid: Grid, clients: Sequence[int]) -> None:
        promise, moments = self._promise, self.request.spec.gram
        layout = NoisyLayout(self.num_classes, self.feature_dim or 0, moments, promise.sample_mu)
        # Features are scaled to length 1 by the clients, whatever a specification says.
        request = replace(self.request, spec=StatisticsSpec(moments), wire_dtype="float64")
        question = question_text(request, NoisyRequest(promise.sample_mu))
        if promise.where == "sites":
            run: Account = (masked := MaskedRun(grid, question=question, rounds=2))
            agreed = masked.begin(clients)
            clients = agreed.clients

            def summed(kind: NoisyKind, mean: Tensor | None) -> tuple[Words, list[int]]:
                nonlocal agreed
                found = masked.summed(agreed, kind, lambda _: layout.shapes(kind), mean)
                agreed = found.agreed
                return found.words, [agreed.clients[party] for party in found.over]
        else:
            run, layout = Account(grid), replace(layout, salted=True)

            def summed(kind: NoisyKind, mean: Tensor | None) -> tuple[Words, list[int]]:
                return clear_sum(run, question, clients, layout, kind, mean, self.min_clients)

        self._noisy, merged = learned(layout, summed, promise.enough(len(clients)), promise.num_samples)
        # Nobody's counts: how many samples a class has is not known, so all are said to have as many.
        counts = torch.full((self.num_classes,), promise.num_samples // self.num_classes)
        counts[: promise.num_samples % self.num_classes] += 1
        total = FeatureStatistics(counts, self.noisy.sums, self.noisy.moments)
        self._take(run, clients, total, merged, len(merged) * self.num_classes)

    def wire_bytes(self, method: str) -> int:
        """Return all bytes that were received: the noise of each part depends on what else is asked for."""
        return self.collection.total_wire_bytes

    def solve(
        self, total: StatisticsSum | None = None, methods: Mapping[str, Method[Any]] | None = None
    ) -> dict[str, LinearHead]:
        """Solve for every method's head from the sums with noise."""
        for name, method in (self.methods() if methods is None else methods).items():
            started = time.perf_counter()
            self.heads[name] = method.solve_noisy(self.noisy)
            self.solve_seconds[name] = time.perf_counter() - started
        return self.heads


def clear_sum(
    run: Account,
    question: str,
    clients: Sequence[int],
    layout: NoisyLayout,
    kind: NoisyKind,
    mean: Tensor | None,
    min_clients: int,
) -> tuple[Words, list[int]]:
    """Return a sum of words that clients send without masks, with all noise in each, and the clients that are in it.

    Raises
    ------
    TooFewClients
        If too few answered.
    """
    party_of = {client: client for client in clients}
    with run.doing(f"sum of all sites ({kind})"):
        total = run.added(clear_content(question, mean), NOISY_SUMS, party_of, layout.shapes(kind))
    if len(total.survivors) < min_clients:
        wanted = f"{min_clients} are needed (min-clients); {run.reasons()}"
        raise TooFewClients(f"{len(total.survivors)} of {len(clients)} clients are in a sum, {wanted}")
    return total.words[:-1], sorted(total.survivors)  # without what hides their digest


def learned(
    layout: NoisyLayout,
    summed: Callable[[NoisyKind, Tensor | None], tuple[Words, list[int]]],
    honest: int,
    num_samples: int,
) -> tuple[NoisyStatistics, list[int]]:
    """Ask for both sums and read them.

    Parameters
    ----------
    layout : NoisyLayout
        In which they come.
    summed : callable
        From a sum's kind, and the mean for the second, to its words and the clients whose noise is in it.
    honest : int
        Clients whose noise is enough.
    num_samples : int
        As declared.

    Returns
    -------
    tuple
        What was learned, and the clients in the second sum.
    """
    mean = layout.read_mean(summed("mean", None)[0], num_samples)
    words, clients = summed("moments", mean)
    sums, moments = layout.read_moments(words)
    edge = 0.0 if moments is None else layout.edge(len(clients), honest)
    return NoisyStatistics(mean, sums, moments, edge, num_samples), clients
