"""Data sets made of another: some of its classes, domains or samples, or its mirror images as well."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, DatasetError, Sample, SampleSource, to_rgb

_NAMED = 20

Flips = Literal["none", "random", "both"]
# Keeps this draw apart from the others that a run's seed decides.
_STREAM = 0xF11B


def only_classes(dataset: Dataset, wanted: str) -> Dataset:
    """Return the samples of some classes, which alone are the classes then, in the data set's order.

    ``wanted`` is the number of the first classes, or their names, separated by commas; empty for all. What is not
    there is a DatasetError.
    """
    if not wanted:
        return dataset
    have = dataset.class_names
    if wanted.isdecimal():
        if not 1 <= int(wanted) <= len(have):
            raise DatasetError(f"{dataset.name}: classes must be 1 to {len(have)}, or names, got {wanted}")
        names = have[: int(wanted)]
    else:
        chosen = [name.strip() for name in wanted.split(",")]
        if unknown := [name for name in chosen if name not in have]:
            shown = f"{list(have[:_NAMED])}{' ...' if len(have) > _NAMED else ''}"
            raise DatasetError(f"{dataset.name}: classes must be among {shown}, got {unknown}")
        names = tuple(name for name in have if name in chosen)
    return of_classes(dataset, names)


def of_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return the samples of some classes, by name, in another data set's order; classes without samples too."""
    if tuple(names) == dataset.class_names:
        return dataset
    kept = [label for label, name in enumerate(dataset.class_names) if name in names]
    if dataset.targets is not None:
        targets = dataset.targets.renamed(dataset.class_names, names)
        return dataclasses.replace(dataset, class_names=tuple(names), targets=targets)
    return dataset.subset(np.flatnonzero(np.isin(dataset.labels, kept))).with_class_names(names)


def without_domain(dataset: Dataset, domain: str) -> tuple[Dataset, Dataset]:
    """Return a data set without one domain, ``COLUMN=VALUE``, and that domain, both with all classes.

    Raises
    ------
    DatasetError
        If there is no such column, or nothing or everything has the value.
    """
    column, _, value = domain.partition("=")
    if column not in dataset.columns:
        raise DatasetError(
            f"{dataset.name}: left-out-domain must name one of the columns {sorted(dataset.columns)}, got {domain!r}"
        )
    values = np.array([str(entry) for entry in dataset.columns[column].tolist()])
    out = values == value
    if not out.any() or out.all():
        found = sorted(set(values.tolist()))
        shown = f"{found[:_NAMED]}{' ...' if len(found) > _NAMED else ''}"
        raise DatasetError(
            f"{dataset.name}: left-out-domain must leave something in and something out; {column!r} has {shown}, "
            f"got {value!r}"
        )
    return dataset.subset(np.flatnonzero(~out)), dataset.subset(np.flatnonzero(out))


def at_most_per_class(labels: NDArray[np.int64], number: int, seed: int) -> NDArray[np.int64]:
    """Return the ascending indices of a limited number of samples of every class, drawn by (seed, class).

    Those of a smaller number are among those of a larger one, and those of a class do not depend on the others.
    """
    chosen = [
        np.random.default_rng([seed, 1, int(label)]).permutation(np.flatnonzero(labels == label))[:number]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def with_mirror_images(dataset: Dataset) -> Dataset:
    """Return a data set of n images followed by their mirror images, left to right: that of image i is image n + i.

    It has no columns: who has which image was decided before.
    """
    digest = hashlib.sha256(f"with mirror images {dataset.fingerprint}\n".encode())
    source, number = dataset.source, len(dataset)

    def opened(index: int) -> Sample:
        sample = source.open(index % number)
        if index < number or isinstance(sample, str):
            return sample
        with sample as image:
            return to_rgb(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    def name(index: int) -> str:
        return source.name(index % number) + ("" if index < number else " (mirrored)")

    return dataclasses.replace(
        dataset,
        labels=np.concatenate([dataset.labels, dataset.labels]),
        fingerprint=digest.hexdigest(),
        source=SampleSource(opened, name),
        columns={},
        persons=None if dataset.persons is None else np.concatenate([dataset.persons, dataset.persons]),
        targets=None if dataset.targets is None else dataset.targets.subset(np.arange(2 * number) % number),
    )


def flipped(indices: NDArray[np.int64], number: int, flips: Flips, seed: int) -> NDArray[np.int64]:
    """Return which images of :func:`with_mirror_images` stand for images at (m,) indices of the n of all clients.

    These are the images themselves; each, or with probability 1/2 its mirror image, drawn by the seed; or both.
    """
    if flips == "both":
        return np.concatenate([indices, indices + number])
    if flips == "none":
        return indices
    mirrored = np.random.default_rng([seed, _STREAM]).random(number) < 0.5
    return indices + number * mirrored[indices]
