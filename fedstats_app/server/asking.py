"""Notes of stage 1 on each client.

Clients' statistics are kept in temporary files, to be read again when all are there: memory does not grow with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.statistics_file import (
    client_from_tensors,
    client_to_tensors,
    save_client_statistics,
)
from fedstats_app.settings.app_config import RunOptions
from fedstats_app.statistics import ClientStatistics
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

# Clients beyond what fits into so many bytes on disk are not suspected of anything.
MAX_KEPT_BYTES = 4 * 2**30
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
    """Notes on every client.

    Parameters
    ----------
    strategy, folder, options, class_names
        Of the run; the folder gets a line per client, the options say which statistics may be kept.
    num_clients : int
        That are asked.

    Attributes
    ----------
    folder : Path
        That of the run.
    kept : KeptStatistics
        What every client sent.
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

    def note(self, outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        """Note what a client answered, as it is folded."""
        client = outcome.client
        self._folder.append_client(outcome.to_json())
        if received is not None:
            self.kept.add(client, received.statistics)
            if self._keeps_labels:
                self.label_counts[client] = received.statistics.rows.class_counts().numpy()
            if self._options.saves_clients:
                self.save(client, received.statistics)

    def save(self, client: int, statistics: ClientStatistics) -> None:
        """Write down by itself what a client sent, so that it can be taken out again."""
        digest = self._strategy.collection.members.digests[client]
        save_client_statistics(self._folder.path, client, digest, statistics, self._class_names)
