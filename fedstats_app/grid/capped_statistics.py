"""Every client's statistics as they count under caps on shares, which are known only when all have answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from fedstats_app.grid.kept_statistics import KeptStatistics
from fedstats_app.statistics import ClientStatistics
from fedstats_app.statistics.share_caps import ShareCaps, capped, share_weights


class CappedStatistics:
    """Clients in a temporary file, of as many bytes as they sent; each time they are read, cut by the same weights.

    Parameters
    ----------
    caps : ShareCaps
        The caps.
    others : Tensor
        (C,) int64 class counts of earlier runs, which are not cut.
    """

    def __init__(self, caps: ShareCaps, others: Tensor) -> None:
        self._caps, self._others = caps, others
        self._kept = KeptStatistics(len(others))
        self._counts: list[Tensor] = []
        self._weights: Tensor | None = None

    @property
    def clients(self) -> list[int]:
        """Who is kept, in the order in which they were added; their statistics are not read."""
        return self._kept.clients

    def add(self, client: int, statistics: Sequence[ClientStatistics]) -> None:
        """Keep a client's statistics, one set per specification."""
        self._kept.add(client, statistics)
        self._counts.append(statistics[0].rows.summed().class_counts)
        self._weights = None

    def __iter__(self) -> Iterator[tuple[int, tuple[ClientStatistics, ...]]]:
        """Yield clients in the order in which they were added, cut to their shares."""
        if self._weights is None:
            self._weights = share_weights(self._counts, self._others, self._caps)
        for (client, statistics), weights in zip(self._kept, self._weights, strict=True):
            yield client, tuple(capped(one, weights) for one in statistics)
