"""Mirror images of the training images, as the code of some papers has them: drawn anew for every seed, or all."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, Sample, SampleSource
from fedstats_app.data.images import to_rgb

Flips = Literal["none", "random", "both"]
# Keeps this draw apart from the others that a run's seed decides.
_STREAM = 0xF11B


class _MirroredSource:
    """The n samples of another source, and then the mirror image of each."""

    def __init__(self, source: SampleSource, number: int) -> None:
        self._source, self._number = source, number

    def open(self, index: int) -> Sample:
        opened = self._source.open(index % self._number)
        if index < self._number or isinstance(opened, str):
            return opened
        with opened as image:
            return to_rgb(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    def name(self, index: int) -> str:
        name = self._source.name(index % self._number)
        return name if index < self._number else f"{name} (mirrored)"


def with_mirror_images(dataset: Dataset) -> Dataset:
    """Return a data set of n images followed by their mirror images, left to right: that of image i is image n + i.

    It has no columns: who has which image was decided before.
    """
    digest = hashlib.sha256(f"with mirror images {dataset.fingerprint}\n".encode())
    return Dataset(
        name=dataset.name,
        class_names=dataset.class_names,
        labels=np.concatenate([dataset.labels, dataset.labels]),
        fingerprint=digest.hexdigest(),
        source=_MirroredSource(dataset.source, len(dataset)),
        numbered=dataset.numbered,
        kind=dataset.kind,
        notes=dataset.notes,
    )


def flipped(indices: NDArray[np.int64], number: int, flips: Flips, seed: int) -> NDArray[np.int64]:
    """Return which images of :func:`with_mirror_images` stand for some of the n images, whoever has them.

    Parameters
    ----------
    indices : ndarray
        (m,) int64 in [0, n).
    number : int
        n.
    flips : {"none", "random", "both"}
        The images themselves; each, or with probability 1/2 its mirror image; or both.
    seed : int
        Draws which.
    """
    if flips == "both":
        return np.concatenate([indices, indices + number])
    if flips == "none":
        return indices
    mirrored = np.random.default_rng([seed, _STREAM]).random(number) < 0.5
    return indices + number * mirrored[indices]
