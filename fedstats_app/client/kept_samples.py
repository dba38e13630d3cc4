"""Samples of a simulation's clients, kept in memory from round to round of a training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

import torch

from fedstats_app.base.threads import share_of_memory, usable_cores
from fedstats_app.training.samples import Samples

# Of all clients, in bytes. A worker for each core keeps its own, a quarter of the memory at most in all.
SAMPLES_IN_MEMORY = min(2**30, share_of_memory(4 * usable_cores()))


class KeptSamples:
    """Samples that are read once, until another run begins.

    Where memory does not suffice for all clients, those that came first stay: clients come in turns, and of as many
    none would be there if the latest stayed.
    """

    def __init__(self) -> None:
        self._run: Hashable = None
        self._kept: dict[Hashable, Samples] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, run: Hashable, client: Hashable, read: Callable[[], Samples]) -> Samples:
        """Return a client's samples, of a run and a node, as they were read or read now."""
        with self._lock:
            if run != self._run:
                self._run, self._bytes = run, 0
                self._kept.clear()
            if client in self._kept:
                return self._kept[client]
        samples = read()
        number = len(samples.labels)
        first = samples.inputs(torch.zeros(min(1, number), dtype=torch.int64))
        size = number * first.numel() * first.element_size()
        with self._lock:
            if run == self._run and self._bytes + size <= SAMPLES_IN_MEMORY:
                self._kept[client] = samples
                self._bytes += size
        return samples


SAMPLES = KeptSamples()
