"""Notes of stage 1 on each client, from which an interrupted stage continues.

Clients' statistics are kept in temporary files, to be read again when all are there: memory does not grow with them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.statistics_file import (
    Accumulated,
    client_from_tensors,
    client_to_tensors,
    load_accumulated,
    rows_from_tensors,
    rows_to_tensors,
    save_accumulated,
    save_client_statistics,
)
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
# The labels of every client are a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000


class KeptStatistics:
    """A temporary file that only this process can see and that is gone with it.

    Parameters
    ----------
    num_classes : int
        C.
    folder : Path, optional
        On whose file system the file is; by default the system's folder for temporary files.
    max_bytes : int, optional
        Clients that would make the file larger are not kept.
    """

    def __init__(self, num_classes: int, folder: Path | None = None, *, max_bytes: int | None = None) -> None:
        self._num_classes, self._max_bytes = num_classes, max_bytes
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it lives as long as this
        # With the types and shapes of its arrays.
        self._clients: list[tuple[int, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]] = []

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    @property
    def clients(self) -> list[int]:
        """Return the clients in the order in which they were added, without reading their statistics."""
        return [client for client, _ in self._clients]

    def add(self, client: int, statistics: ClientStatistics) -> bool:
        """Keep a client's statistics; return whether there was room."""
        parts = {key: part.numpy() for key, part in client_to_tensors(statistics).items()}
        end = self._file.seek(0, 2)
        if self._max_bytes is not None and end + sum(part.nbytes for part in parts.values()) > self._max_bytes:
            return False
        self._file.writelines(part.tobytes() for part in parts.values())
        self._clients.append((client, {key: (part.dtype, part.shape) for key, part in parts.items()}))
        return True

    def __iter__(self) -> Iterator[tuple[int, ClientStatistics]]:
        """Yield clients in the order in which they were added, bit for bit what was."""
        self._file.seek(0)
        for client, arrays in self._clients:
            found = {key: self._load(*array) for key, array in arrays.items()}
            yield client, client_from_tensors(found, self._num_classes)

    def _load(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
        # Without a header in the file: of thousands of clients, to parse it took longer than all else.
        array = np.empty(shape, dtype)
        self._file.readinto(array.reshape(-1).view(np.uint8).data)
        return torch.from_numpy(array)


class Asked:
    """Notes on every client, saved in the run folder at times if statistics may be kept there.

    Parameters
    ----------
    strategy, folder, options, class_names
        Of the run; the folder gets a line per client, the options say which statistics may be kept, and how often.
    num_clients : int
        That are asked.

    Attributes
    ----------
    folder : Path
        That of the run.
    kept : KeptStatistics
        What every client sent; of those from before an interruption the rows.
    label_counts : dict
        From client to (C,) samples per class, where the table is not too large; some sites would rather not show them.
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
    ) -> None:
        num_classes = len(class_names)
        self.kept = KeptStatistics(num_classes, folder.path, max_bytes=MAX_KEPT_BYTES)
        self.label_counts: dict[int, np.ndarray] = {}
        self.rounds: list[dict[str, object]] = []
        self.folder = folder.path
        self._strategy, self._folder, self._options, self._class_names = strategy, folder, options, class_names
        self._keeps_labels = num_clients * num_classes <= MAX_LABEL_CELLS
        self._last, self._took = time.monotonic(), 0.0

    def note(self, outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        """Note what a client answered, as it is folded."""
        client = outcome.client
        self._folder.append_client(outcome.to_json())
        if received is not None:
            self.kept.add(client, received.statistics)
            if self._keeps_labels:
                self.label_counts[client] = received.statistics.rows.class_counts().numpy()
            if self._options.save_client_statistics:
                self.save(client, received.statistics)
        pause = max(self._options.checkpoint_seconds, SHARE_OF_TIME * self._took)
        if self._options.save_statistics and time.monotonic() >= self._last + pause:
            self._keep()

    def save(self, client: int, statistics: ClientStatistics) -> None:
        """Write down by itself what a client sent, so that it can be taken out again."""
        digest = self._strategy.collection.digests[client]
        save_client_statistics(self._folder.path, client, digest, statistics, self._class_names)

    def take_up(self, present: Iterable[int]) -> bool:
        """Continue from what an interrupted run has kept; whether there is anything.

        A client that was merged and is not ``present`` may have come back with another id: it is then known by its
        statistics.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        kept = load_accumulated(self._folder.path)
        if kept is None:
            return False
        self._strategy.collection.take_up(kept.total, kept.record["collection"], set(present))
        self.rounds[:] = kept.record["rounds"]
        self.label_counts.update(zip(kept.record["labelled"], kept.tensors["label-counts"].numpy(), strict=True))
        start = 0
        for client, number in kept.record["owners"]:
            own = {name: tensor[start : start + number] for name, tensor in kept.tensors.items()}
            self.kept.add(client, ClientStatistics(rows_from_tensors(own, self._strategy.num_classes)))
            start += number
        return True

    def _keep(self) -> None:
        """Write down where the stage stands."""
        started = time.monotonic()
        total, record = self._strategy.collection.state()
        tensors, owners = self._rows()
        labels = [torch.from_numpy(counts) for counts in self.label_counts.values()]
        tensors["label-counts"] = torch.stack(labels) if labels else torch.zeros(0, 0, dtype=torch.int64)
        noted = {"rounds": self.rounds, "labelled": list(self.label_counts), "owners": owners}
        save_accumulated(self._folder.path, Accumulated(total, tensors, {"collection": record, **noted}))
        self._last = time.monotonic()
        self._took = self._last - started

    def _rows(self) -> tuple[dict[str, Tensor], list[list[int]]]:
        """Gather the rows of all clients, and of each client in turn its id and how many rows it has."""
        parts: list[ClassMeanRows] = []
        owners: list[list[int]] = []
        for client, sent in self.kept:
            parts.append(sent.rows)
            owners.append([client, len(sent.rows)])
            if sum(rows.class_sums.nbytes for rows in parts) > MAX_ROW_BYTES:
                return {}, []
        return (rows_to_tensors(ClassMeanRows.concatenate(parts)), owners) if parts else ({}, [])
