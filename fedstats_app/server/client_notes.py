"""Statistics, labels and outcomes of single clients, kept during stage 1.

Statistics go to a temporary file, which is read when all clients have answered, so that memory does not grow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.report.statistics_file import client_from_tensors, client_to_tensors, save_client_statistics
from fedstats_app.server.run import Run
from fedstats_app.statistics import ClientStatistics
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

# Clients whose statistics do not fit into this many bytes on disk are not examined for harm.
MAX_KEPT_BYTES = 4 * 2**30


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
        # With the types and shapes of the arrays, because parsing headers of thousands of clients took longest.
        self._clients: list[tuple[int, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]] = []

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
        """Yield clients and their statistics, bit for bit, in the order in which they were added."""
        self._file.seek(0)
        for client, arrays in self._clients:
            parts = {key: np.empty(shape, dtype) for key, (dtype, shape) in arrays.items()}
            for part in parts.values():
                self._file.readinto(part.reshape(-1).view(np.uint8).data)
            tensors = {key: torch.from_numpy(part) for key, part in parts.items()}
            yield client, client_from_tensors(tensors, self._num_classes)


class ClientNotes:
    """Notes on every client of a run; clients.jsonl gets a line per client.

    Attributes
    ----------
    kept : KeptStatistics
        Statistics of every client.
    """

    def __init__(self, run: Run, strategy: StatisticsStrategy) -> None:
        self.kept = KeptStatistics(len(run.class_names), run.folder.path, max_bytes=MAX_KEPT_BYTES)
        self._run, self._strategy = run, strategy

    def note(self, outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        """Note a client's answer when it is added to the sums."""
        client = outcome.client
        self._run.folder.append_client(outcome.to_json())
        if received is not None:
            self.kept.add(client, received.statistics)
            if self._run.config.run.saves_clients:
                self.save(client, received.statistics)

    def save(self, client: int, statistics: ClientStatistics) -> None:
        """Write a client's statistics to a file of their own, so that the client can be removed."""
        run, digest = self._run, self._strategy.collection.members.digests[client]
        save_client_statistics(run.folder.path, client, digest, statistics, run.class_names)
