"""What a client trains on, the order in which it sees it, and how: labels in range, kernels that repeat themselves."""

from __future__ import annotations

import contextlib
import itertools
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
    """Samples held in memory: cached features, or a few images.

    Parameters
    ----------
    inputs : Tensor
        (n, ...) float32, on any device.
    labels : Tensor
        (n,) int64 on the CPU.

    Raises
    ------
    ValueError
        If there are not as many labels as inputs, or they have another dtype.
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        check_tensor("labels", labels, (len(inputs),), torch.int64)
        self._inputs, self.labels = inputs, labels.cpu()

    def inputs(self, indices: Tensor) -> Tensor:
        """Return a copy of the inputs at (b,) positions, on the device they are held on."""
        return self._inputs[indices.to(self._inputs.device)]


class SelectedSamples:
    """Some of other samples.

    Parameters
    ----------
    samples : Samples
        Those to choose from.
    positions : Tensor
        (m,) int64, which, in the order wanted.
    """

    def __init__(self, samples: Samples, positions: Tensor) -> None:
        self._samples, self._positions, self.labels = samples, positions, samples.labels[positions]

    def inputs(self, indices: Tensor) -> Tensor:
        """Return (b, ...) float32 inputs of the samples at (b,) int64 positions among those selected."""
        return self._samples.inputs(self._positions[indices])


def batch_order(n: int, batch_size: int, key: Sequence[int], epoch: int, *, smallest: int = 0) -> list[Tensor]:
    """Return the batches of one epoch: every sample once, in an order drawn from (key, epoch).

    Parameters
    ----------
    n : int
        Number of samples.
    batch_size : int
        Samples of a batch; the last one has the rest.
    key : sequence of int
        Each at least 0: what the draw depends on, say (seed, client, absolute round).
    epoch : int
        At least 0.
    smallest : int
        A last batch of fewer samples is joined to the one before, if there is one.

    Returns
    -------
    list of Tensor
        ceil(n / batch_size) tensors, or one less, of int64 positions on the CPU.

    Raises
    ------
    ValueError
        If an entry of the key is negative.
    """
    order = torch.from_numpy(generator(key, epoch).permutation(n).astype(np.int64))
    firsts = list(range(0, n, batch_size))
    if len(firsts) > 1 and n - firsts[-1] < smallest:
        firsts.pop()
    return [order[first:last] for first, last in itertools.pairwise([*firsts, n])]


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
