"""The clients with the largest Gram matrices, in files, to be read again when all are there."""

from __future__ import annotations

from collections.abc import Iterator

from fedstats_app.grid.kept_statistics import KeptStatistics
from fedstats_app.heads.influence import energy
from fedstats_app.statistics import ClientStatistics


class LargestStatistics:
    """So many clients and no more, each in a temporary file: neither memory nor disk grows with the number of clients.

    Parameters
    ----------
    num_classes : int
        C.
    number : int
        How many are kept.
    """

    def __init__(self, num_classes: int, number: int) -> None:
        self._num_classes, self._number = num_classes, number
        self._kept: dict[int, tuple[float, KeptStatistics]] = {}

    def add(self, client: int, statistics: ClientStatistics) -> None:
        """Keep a client's statistics if its energy is among the largest; of equal ones the first stays."""
        size = energy(statistics)
        if not size:
            return
        if len(self._kept) == self._number:
            smallest = min(reversed(self._kept), key=lambda one: self._kept[one][0])
            if self._kept[smallest][0] >= size:
                return
            del self._kept[smallest]
        file = KeptStatistics(self._num_classes)
        file.add(client, [statistics])
        self._kept[client] = (size, file)

    def __iter__(self) -> Iterator[tuple[int, tuple[ClientStatistics, ...]]]:
        """Yield clients in the order in which they were added, bit for bit what was."""
        for _, file in self._kept.values():
            yield from file
