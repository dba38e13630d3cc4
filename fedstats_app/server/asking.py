"""What stage 1 notes while clients answer; an interrupted stage continues from what it had summed and noted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.grid.kept_statistics import KeptStatistics
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.statistics_file import Accumulated, load_accumulated, save_accumulated, save_client_statistics
from fedstats_app.settings.app_config import RunOptions
from fedstats_app.statistics import ClassMeanRows, ClientStatistics
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

# Clients beyond what fits into so many bytes on disk are not suspected of anything.
MAX_KEPT_BYTES = 4 * 2**30
# Rows of single clients, by which their influence is measured in the end, are written down up to so many bytes: above
# that, it is measured of those that answer after an interruption only. No head depends on it.
MAX_ROW_BYTES = 64 * 2**20
# Writing down takes at most one part in so many of the time.
SHARE_OF_TIME = 20
# A plot of the labels of every client needs a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000


class Asked:
    """What is noted of every client, and now and then kept in the run folder, if statistics may be kept there.

    Parameters
    ----------
    strategy : StatisticsStrategy
        That folds.
    folder : RunFolder
        Gets a line per client.
    options : RunOptions
        Which statistics may be kept, and how often.
    class_names : tuple of str
        Of the run.
    num_clients : int
        That are asked.
    show_labels : bool
        Whether the samples per class of each client may be shown.

    Attributes
    ----------
    kept : KeptStatistics
        What every client sent; of those from before an interruption the rows.
    label_counts : dict
        From client to (C,) samples per class, where they may be shown.
    rounds : list
        An entry per round for results.json, where there are several.
    """

    def __init__(
        self,
        strategy: StatisticsStrategy,
        folder: RunFolder,
        options: RunOptions,
        class_names: tuple[str, ...],
        *,
        num_clients: int,
        show_labels: bool,
    ) -> None:
        num_classes = len(class_names)
        self.kept = KeptStatistics(num_classes, folder.path, max_bytes=MAX_KEPT_BYTES)
        self.label_counts: dict[int, np.ndarray] = {}
        self.rounds: list[dict[str, object]] = []
        self._strategy, self._folder, self._options, self._class_names = strategy, folder, options, class_names
        self._show_labels = show_labels and num_clients * num_classes <= MAX_LABEL_CELLS
        self._last, self._took = time.monotonic(), 0.0

    def note(self, outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        """Note what a client answered, as it is folded."""
        client = outcome.client
        self._folder.append_client(outcome.to_json())
        if received is not None:
            self.kept.add(client, received.statistics)
            if self._show_labels:
                self.label_counts[client] = received.statistics[0].rows.class_counts().numpy()
            if self._options.save_client_statistics:
                self.save(client, received.statistics)
        pause = max(self._options.checkpoint_seconds, SHARE_OF_TIME * self._took)
        if self._options.save_statistics and time.monotonic() >= self._last + pause:
            self._keep()

    def save(self, client: int, statistics: Sequence[ClientStatistics]) -> None:
        """Write down by itself what a client sent, so that it can be taken out again."""
        digest = self._strategy.collection.digests[client]
        save_client_statistics(self._folder.path, client, digest, statistics, self._class_names)

    def take_up(self, present: Iterable[int]) -> bool:
        """Continue from what an interrupted run has kept; whether there is anything.

        Parameters
        ----------
        present : iterable of int
            The clients that are there now. One that was merged and is not may have come back with another id: it is
            then known by its statistics.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        kept = load_accumulated(self._folder.path)
        if kept is None:
            return False
        summed = [kept.sums[str(index)] for index in range(len(kept.sums))]
        self._strategy.collection.take_up(summed, kept.record["collection"], set(present))
        self.rounds[:] = kept.record["rounds"]
        self.label_counts.update(zip(kept.record["labelled"], kept.tensors["label-counts"].numpy(), strict=True))
        start = 0
        for client, number in kept.record["owners"]:
            part = slice(start, start + number)
            ids, counts, sums = (kept.tensors[name][part] for name in ("row-class-ids", "row-counts", "row-sums"))
            rows = ClassMeanRows(ids, counts, num_classes=self._strategy.num_classes, class_sums=sums)
            self.kept.add(client, [ClientStatistics(rows)])
            start += number
        return True

    def _keep(self) -> None:
        """Write down where the stage stands."""
        started = time.monotonic()
        sums, record = self._strategy.collection.state()
        named = {str(index): total for index, total in enumerate(sums)}
        tensors, owners = self._rows()
        labels = [torch.from_numpy(counts) for counts in self.label_counts.values()]
        tensors["label-counts"] = torch.stack(labels) if labels else torch.zeros(0, 0, dtype=torch.int64)
        noted = {"rounds": self.rounds, "labelled": list(self.label_counts), "owners": owners}
        save_accumulated(self._folder.path, Accumulated(named, tensors, {"collection": record, **noted}))
        self._last = time.monotonic()
        self._took = self._last - started

    def _rows(self) -> tuple[dict[str, Tensor], list[list[int]]]:
        """Gather the rows of all clients, and of each client in turn its id and how many rows it has."""
        parts: list[ClassMeanRows] = []
        owners: list[list[int]] = []
        for client, (one, *_) in self.kept:
            parts.append(one.rows)
            owners.append([client, len(one.rows)])
            if sum(rows.class_sums.nbytes for rows in parts) > MAX_ROW_BYTES:
                return {}, []
        if not parts:
            return {}, []
        rows = ClassMeanRows.concatenate(parts)
        return {"row-class-ids": rows.class_ids, "row-counts": rows.counts, "row-sums": rows.class_sums}, owners
