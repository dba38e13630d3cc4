"""Clients' statistics in temporary files, to be read again when all are there: memory does not grow with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows, ClientStatistics, GramFactor, ScatterFactor
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper


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
        self._clients: list[tuple[int, int]] = []  # with the number of sets of statistics

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    @property
    def clients(self) -> list[int]:
        """Who is kept, in the order in which they were added; their statistics are not read."""
        return [client for client, _ in self._clients]

    def add(self, client: int, statistics: Sequence[ClientStatistics]) -> bool:
        """Keep a client's statistics, one set per specification; return whether there was room."""
        sets = [self._parts(one) for one in statistics]
        end = self._file.seek(0, 2)
        size = sum(part.nbytes for parts in sets for part in parts)
        if self._max_bytes is not None and end + size > self._max_bytes:
            return False
        for parts in sets:
            for part in parts:
                np.save(self._file, part.numpy(), allow_pickle=False)
        self._clients.append((client, len(statistics)))
        return True

    def __iter__(self) -> Iterator[tuple[int, tuple[ClientStatistics, ...]]]:
        """Yield clients in the order in which they were added, bit for bit what was."""
        self._file.seek(0)
        for client, number in self._clients:
            yield client, tuple(self._read() for _ in range(number))

    def _parts(self, client: ClientStatistics) -> list[Tensor]:
        """List the arrays of a set: its rows, whether there is a factor, a Gram matrix, a scatter, and these."""
        gram, scatter = client.gram_factor, client.scatter
        triangle = None if gram is not None or client.gram is None else pack_upper(client.gram)
        parts = [client.rows.class_ids, client.rows.counts, client.rows.class_sums]
        parts.append(torch.tensor([gram is not None, triangle is not None, scatter is not None]))
        parts += [gram.packed()] if gram is not None else []
        parts += [triangle] if triangle is not None else []
        if scatter is not None:
            parts += [scatter.values, scatter.directions, torch.tensor(scatter.left_out, dtype=torch.float64)]
        return parts

    def _read(self) -> ClientStatistics:
        ids, counts, sums, kinds = (self._load() for _ in range(4))
        rows = ClassMeanRows(ids, counts, num_classes=self._num_classes, class_sums=sums)
        factored, has_gram, has_scatter = kinds.tolist()
        gram: Tensor | GramFactor | None = None
        if factored:
            gram = GramFactor.unpacked(self._load(), rows.feature_dim)
        elif has_gram:
            gram = unpack_upper(self._load(), rows.feature_dim)
        scatter = None
        if has_scatter:
            values, directions, left_out = (self._load() for _ in range(3))
            scatter = ScatterFactor(values, directions, float(left_out))
        return ClientStatistics(rows, gram, scatter)

    def _load(self) -> Tensor:
        return torch.from_numpy(np.load(self._file, allow_pickle=False))
