"""The strategy whose statistics are sums with noise: secure sums of the sites' shares of it, or sums in clear."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead
from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.methods import Method, cannot_be_noisy
from fedstats_app.secure.account import Promise
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout
from fedstats_app.statistics.secure_words import Words, numbers_of
from fedstats_app.strategies.secure_sums import (
    IN_WORDS,
    Agreed,
    MaskedRun,
    Parties,
    SecureStatisticsStrategy,
    Summed,
    SummingRun,
)
from fedstats_app.wire.secure import (
    CLEAR_SUMS,
    NOISY_SUMS,
    SECURE_NOISY,
    NoisyRequest,
    clear_content,
    sums_content,
)


@dataclass
class NoisyRun(MaskedRun[NoisyLayout]):
    """One run of masks for sums with noise."""

    def question(self, agreed: Agreed, kind: NoisyKind, known: dict[str, Tensor]) -> tuple[RecordDict, str]:
        """Return the request of :meth:`MaskedRun.question` as ``query.secure_noisy``."""
        noise = NoisyRequest(kind, self.layout.mu, self.layout.clip)
        return sums_content(agreed.plan, agreed.turn, agreed.active, self.request, noise, known), SECURE_NOISY


@dataclass
class ClearRun(SummingRun[NoisyLayout]):
    """Sums without masks: clients send sums with all the noise that is needed, or the server adds it.

    Attributes
    ----------
    min_clients : int
        Fewer in a sum than this are an error.
    adds_noise : bool
        Whether the server adds it, to exact sums, of which nothing else is kept.
    """

    min_clients: int
    adds_noise: bool

    def begin(self, clients: Sequence[int]) -> Parties:
        """Take all clients as parties."""
        return Parties(tuple(clients), tuple(range(len(clients))))

    def summed(
        self, parties: Parties, kind: NoisyKind, holders: Tensor | None, known: dict[str, Tensor]
    ) -> Summed[Parties]:
        """Return a sum over all classes.

        Raises
        ------
        TooFewClients
            If too few answered.
        """
        classes = torch.ones(self.layout.num_classes, dtype=torch.bool)
        content = clear_content(self.request, NoisyRequest(kind, self.layout.mu, self.layout.clip), known)
        with self.doing(IN_WORDS[kind]):
            total = self.add_up(parties, kind, content, CLEAR_SUMS if self.adds_noise else NOISY_SUMS, classes)
        left = tuple(sorted(total.survivors))
        if len(left) < self.min_clients:
            wanted = f"{self.min_clients} are needed (min-clients); {self.reasons()}"
            raise TooFewClients(f"{len(left)} of {len(parties.clients)} clients are in a sum, {wanted}")
        words = total.words
        if self.adds_noise:
            words = self.layout.noisy(kind, [numbers_of(numbers) for numbers in words[:-1]], 1, None)
        # Without what hides their digest.
        return Summed(words[:-1], classes, left, replace(parties, active=left))


def learned(
    layout: NoisyLayout,
    summed: Callable[[NoisyKind, dict[str, Tensor]], tuple[Words, int]],
    honest: int,
    num_samples: int,
) -> NoisyStatistics:
    """Ask for both sums and read them.

    Parameters
    ----------
    layout : NoisyLayout
        In which they come.
    summed : callable
        From a sum's kind, and ``mean`` for the second, to its words and how many parties' noise is in it.
    honest : int
        Whose noise is enough.
    num_samples : int
        As declared.
    """
    words, parties = summed("mean", {})
    # Noise that hides clients can be larger than the mean, which then counts as far as it is no noise.
    known = layout.known(words, parties, honest) if layout.clip else 1.0
    mean = known * layout.read_mean(words, num_samples)
    words, parties = summed("moments", {"mean": mean})
    sums, moments = layout.read_moments(words)
    if known < 1:  # What such a mean did not take away, all class sums have in common (research/noise.md).
        common = sums.sum(dim=0)
        sums -= (1 - known**4) * torch.outer(sums @ common, common) / common.square().sum()
    edge = 0.0 if moments is None else layout.edge(parties, honest)
    return NoisyStatistics(mean, sums, moments, edge, num_samples)


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
        spec, dim = self.request.spec, self.feature_dim or 0
        promise = self._promise
        masked = promise.where == "sites"
        layout = NoisyLayout(self.num_classes, dim, spec.gram, promise.mu, promise.clip, salted=not masked)
        # Features are scaled to length 1 by the clients, whatever a specification says.
        request = replace(self.request, spec=StatisticsSpec(spec.gram), wire_dtype="float64")
        run: NoisyRun | ClearRun = NoisyRun(grid, request, layout)
        if not masked:
            run = ClearRun(grid, request, layout, self.min_clients, promise.where == "server")
        parties: Any = run.begin(clients)
        number, over = promise.num_samples, tuple[int, ...]()

        def summed(kind: NoisyKind, known: dict[str, Tensor]) -> tuple[Words, int]:
            nonlocal parties, over
            found: Summed[Any] = run.summed(parties, kind, None, known)
            parties, over = found.parties, found.over
            return found.words, promise.adding(len(parties.clients), len(over))[1]

        self._noisy = learned(layout, summed, promise.adding(*[len(parties.clients)] * 2)[0], number)
        # Nobody's counts: how many samples a class has is not known, so all are said to have as many.
        counts = torch.full((self.num_classes,), number // self.num_classes)
        counts[: number % self.num_classes] += 1
        total = FeatureStatistics(counts, self.noisy.sums, self.noisy.moments)
        merged = [parties.clients[party] for party in over]
        self._take(run, parties.clients, total, merged, len(over) * self.num_classes)

    def solve(self, total: StatisticsSum | None = None) -> dict[str, LinearHead]:
        """Solve for every method's head from the sums with noise."""
        for name, method in self.methods().items():
            started = time.perf_counter()
            self.heads[name] = method.solve_noisy(self.noisy)
            self.solve_seconds[name] = time.perf_counter() - started
        return self.heads
