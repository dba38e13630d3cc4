"""A client's samples as training takes them: read through the backbone's transform, a batch at a time."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.data import Dataset, UnreadableSampleError

logger = logging.getLogger("fedstats_app")

# Transformed samples of one client are kept in memory while it trains if they take no more than this.
MEMORY_FOR_SAMPLES = 2**30


def check_kind(dataset: Dataset, backbone: Backbone) -> None:
    """Refuse images for a language model, and texts for an image network.

    Raises
    ------
    ValueError
        If the data are of another kind than the backbone takes.
    """
    if dataset.kind != backbone.kind:
        raise ValueError(
            f"backbone {backbone.name} takes {backbone.kind}s, but {dataset.name} holds {dataset.kind}s: "
            "name another backbone or another dataset"
        )


class DatasetSamples:
    """Transformed samples of either kind with labels; what cannot be read is counted, named in the log and left out.

    Samples that fit into ``MEMORY_FOR_SAMPLES`` together are read once; others whenever they are asked for.

    Parameters
    ----------
    dataset : Dataset
        Where the samples are.
    indices : ndarray
        (n,) which ones.
    backbone : Backbone
        Whose transform they go through.

    Attributes
    ----------
    labels : Tensor
        (m,) int64, of the readable ones, in their order.
    positions : Tensor
        (m,) int64 in [0, n), which those are.
    num_unreadable : int
        n - m.

    Raises
    ------
    ValueError
        If the data are of another kind than the backbone takes.
    """

    def __init__(self, dataset: Dataset, indices: NDArray[np.int64], backbone: Backbone) -> None:
        check_kind(dataset, backbone)
        self._dataset, self._backbone = dataset, backbone
        largest = max(int(np.prod(shape)) for shape in backbone.transform.shapes) * backbone.transform.dtype.itemsize
        keep = len(indices) * largest <= MEMORY_FOR_SAMPLES
        positions: list[int] = []
        inputs: list[Tensor] = []
        for position, index in enumerate(indices.tolist()):
            try:
                one = self._read(index)
            except UnreadableSampleError as error:
                logger.warning("left out: %s", error)
                continue
            positions.append(position)
            if keep:
                inputs.append(one)
        self.positions = torch.tensor(positions, dtype=torch.int64)
        self._indices = indices[self.positions.numpy()]
        self._inputs = inputs if keep else None
        self.labels = torch.from_numpy(np.array(dataset.labels[self._indices], dtype=np.int64))
        self.num_unreadable = len(indices) - len(positions)

    def inputs(self, indices: Tensor) -> Tensor:
        """Read some samples by their positions (b,).

        Returns
        -------
        Tensor
            Images (b, 3, H, W) float32 in the backbone's memory layout; or token ids and attention masks (b, 2, T)
            int64, T that of the longest text.
        """
        if self._inputs is not None:
            chosen = [self._inputs[position] for position in indices.tolist()]
        else:
            chosen = [self._read(index) for index in self._indices[indices.numpy()].tolist()]
        layout = torch.channels_last if self._backbone.channels_last else torch.contiguous_format
        return self._backbone.transform.stack(chosen).contiguous(memory_format=layout)

    def _read(self, index: int) -> Tensor:
        return self._backbone.transform(self._dataset.sample(index))
