"""Samples of a client, the order of its batches, and deterministic kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import check_tensor


class Samples(Protocol):
    """Labelled inputs that are read a batch at a time: they need not fit into memory."""

    @property
    def labels(self) -> Tensor:
        """(n,) int64 class ids on the CPU."""

    def inputs(self, indices: Tensor) -> Tensor:
        """Return (b, ...) float32 inputs of the samples at (b,) int64 positions, in that order."""


class TensorSamples:
    """Samples in memory: features, or a few images (n, ...), and labels (n,) int64; others are a ValueError."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        check_tensor("labels", labels, (len(inputs),), torch.int64)
        self._inputs, self.labels = inputs, labels.cpu()

    def inputs(self, indices: Tensor) -> Tensor:
        """Return a copy of the inputs at (b,) positions, on the device they are held on."""
        return self._inputs[indices.to(self._inputs.device)]


class SelectedSamples:
    """The samples at (m,) int64 positions of others, in this order."""

    def __init__(self, samples: Samples, positions: Tensor) -> None:
        self._samples, self._positions, self.labels = samples, positions, samples.labels[positions]

    def inputs(self, indices: Tensor) -> Tensor:
        """Return (b, ...) float32 inputs of the samples at (b,) int64 positions among those selected."""
        return self._samples.inputs(self._positions[indices])


def batch_order(n: int, batch_size: int, key: Sequence[int], epoch: int) -> list[Tensor]:
    """Return the batches of one epoch as int64 positions: every one of n samples once, in an order by (key, epoch).

    The last batch has the rest. The key's entries, say (seed, client, absolute round), and the epoch are at least 0.
    """
    order = torch.from_numpy(generator(key, epoch).permutation(n).astype(np.int64))
    return [order[first : first + batch_size] for first in range(0, n, batch_size)]


def generator(key: Sequence[int], *stream: int) -> np.random.Generator:
    """Return the generator of a key and a stream under it, integers of at least 0."""
    return np.random.default_rng([*key, *stream])


@contextlib.contextmanager
def reproducible_kernels(device: torch.device) -> Iterator[None]:
    """Choose cuDNN's deterministic algorithms in full float32 on a GPU; other devices need nothing."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
