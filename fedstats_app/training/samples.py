"""What a client trains on, the order in which it sees it, and how: labels in range, kernels that repeat themselves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


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
        If shapes or dtypes are others.
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise ValueError(f"labels must be (n,) int64, got {tuple(labels.shape)} {labels.dtype}")
        if inputs.ndim < 2 or len(inputs) != len(labels) or inputs.dtype != torch.float32:
            raise ValueError(f"inputs must be ({len(labels)}, ...) float32, got {tuple(inputs.shape)} {inputs.dtype}")
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
        If n or an entry of the key is negative, or batch_size is below 1.
    """
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    order = torch.from_numpy(generator(key, epoch).permutation(n).astype(np.int64))
    firsts = list(range(0, n, batch_size))
    if len(firsts) > 1 and n - firsts[-1] < smallest:
        firsts.pop()
    return [order[first:last] for first, last in itertools.pairwise([*firsts, n])]


def generator(key: Sequence[int], *stream: int) -> np.random.Generator:
    """Return the generator of a key and a stream under it.

    Raises
    ------
    ValueError
        If an integer is negative.
    """
    entropy = [*key, *stream]
    if any(word < 0 for word in entropy):
        raise ValueError(f"a key must consist of integers of at least 0, got {entropy}")
    return np.random.default_rng(entropy)


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Refuse labels outside [0, C): cross-entropy would ignore -100 without a word, and a GPU fails for good.

    Raises
    ------
    ValueError
        If there is one.
    """
    if len(labels) and not (0 <= int(labels.min()) and int(labels.max()) < num_classes):
        raise ValueError(f"labels must lie in [0, {num_classes}), got {int(labels.min())} to {int(labels.max())}")


@contextlib.contextmanager
def reproducible_kernels(device: torch.device) -> Iterator[None]:
    """Choose cuDNN's deterministic algorithms in full float32 on a GPU; other devices need nothing."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
