"""A federation by its clients' sizes alone: images that are made when they are read, for measuring at scale.

Nothing of it is real but the sizes. Every client draws its labels and images by its place in the file, so that who
comes after it changes nothing.
"""

import csv
import functools
import hashlib
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.paths import absolute_path

PREFIX = "synthetic:"
CLIENT_COLUMN, SIZE_COLUMN, TEST = "client", "num_images", "test"
MAX_CLASSES = 1_000_000
# An image is its class's pattern with as much noise.
SIDE, NOISE = 8, 48.0
# A client's n samples are of about CONCENTRATION * ln(1 + n / CONCENTRATION) classes: as in iNaturalist-Users-120K.
CONCENTRATION = 33.0
# Class c is drawn with a chance in proportion to 1 / (c + COMMON).
COMMON = 50.0
_TEST_SEED = 2**32 - 1


class SyntheticSource:
    """Images of 8 x 8 pixels: the pattern of a class, and noise drawn by client and place among its samples."""

    def __init__(self, labels: NDArray[np.int64], seeds: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        self._labels, self._seeds, self._places = labels, seeds, places

    def open(self, index: int) -> Image.Image:
        """Return the image."""
        pattern = _pattern(int(self._labels[index]))
        draw = np.random.default_rng([2, int(self._seeds[index]), int(self._places[index])])
        pixels = pattern + draw.normal(0.0, NOISE, pattern.shape)
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    def name(self, index: int) -> str:
        """Return the client's place in the file and the sample's among the client's."""
        return f"client {self._seeds[index]}, sample {self._places[index]}"


@functools.lru_cache(maxsize=4096)
def _pattern(label: int) -> NDArray[np.float64]:
    return np.random.default_rng([1, label]).uniform(64, 192, (SIDE, SIDE, 3))


def load_synthetic(where: str, split: str) -> Dataset | None:
    """Return a made-up data set whose clients are as large as a file says.

    Parameters
    ----------
    where : str
        ``C:/PATH``: the number of classes, and a CSV file with the columns ``client`` and ``num_images``, a line per
        client. The line of ``test``, if there is one, is the size of the test split.
    split : {"train", "test"}
        Which part.

    Returns
    -------
    Dataset or None
        With a column ``client``, for the partitioner natural-id; None for the test split of a file without one.

    Raises
    ------
    DatasetError
        If the number of classes, the file or a line of it is not so.
    """
    number, _, path = where.partition(":")
    spec = f"{PREFIX}{where}"
    if not (number.isdecimal() and 2 <= int(number) <= MAX_CLASSES):
        raise DatasetError(f"{spec}: must be {PREFIX}C:/PATH with 2 to {MAX_CLASSES:,} classes C, got {number!r}")
    file = absolute_path(path, owner=spec)
    if not file.is_file():
        raise DatasetError(f"{spec}: there is no file {file}")
    return _made(spec, int(number), file.read_bytes(), split)


@functools.lru_cache(maxsize=2)
def _made(spec: str, num_classes: int, table: bytes, split: str) -> Dataset | None:
    """Make a split once per process and content of the file."""
    sizes = _sizes(spec, table)
    test = sizes.pop(TEST, None)
    if split == "train":
        names, seeds = np.array([*sizes]), np.arange(len(sizes))
        number = np.array([*sizes.values()])
        drawn = [_labels(client, size, num_classes, CONCENTRATION) for client, size in enumerate(number.tolist())]
    elif test is not None:
        names, seeds, number = np.array([TEST]), np.array([_TEST_SEED]), np.array([test])
        drawn = [_labels(_TEST_SEED, test, num_classes, np.inf)]
    else:
        return None
    labels = np.concatenate(drawn)
    return Dataset(
        name=f"{spec} ({split})",
        class_names=tuple(f"class {label}" for label in range(num_classes)),
        labels=labels,
        fingerprint=hashlib.sha256(f"{num_classes} {split}\n".encode() + table).hexdigest(),
        source=SyntheticSource(labels, np.repeat(seeds, number), np.concatenate([np.arange(n) for n in number])),
        columns={CLIENT_COLUMN: np.repeat(names, number)},
        notes=("made up for measuring: only the sizes of its clients mean something",),
    )


def _sizes(spec: str, table: bytes) -> dict[str, int]:
    """Return the number of samples by client, in the order of the file."""
    lines = csv.DictReader(io.StringIO(table.decode("utf-8", "replace")))
    if not {CLIENT_COLUMN, SIZE_COLUMN} <= {*(lines.fieldnames or ())}:
        raise DatasetError(f"{spec}: must have the columns {CLIENT_COLUMN},{SIZE_COLUMN}, got {lines.fieldnames}")
    sizes: dict[str, int] = {}
    for line in lines:
        name, size = line[CLIENT_COLUMN], line[SIZE_COLUMN] or ""
        if not (name and name not in sizes and size.isdecimal() and int(size) >= 1):
            raise DatasetError(
                f"{spec}: line {lines.line_num} must have a client of its own and 1 or more images, "
                f"got {name!r}, {size!r}"
            )
        sizes[name] = int(size)
    if not sizes.keys() - {TEST}:
        raise DatasetError(f"{spec}: must have a line for at least one client, got none")
    return sizes


def _labels(seed: int, number: int, num_classes: int, concentration: float) -> NDArray[np.int64]:
    """Draw a client's labels: each of a class drawn by its frequency, or that of an earlier sample (Polya's urn)."""
    draw = np.random.default_rng([0, seed])
    cumulated = np.cumsum(1.0 / (np.arange(num_classes) + COMMON))
    labels: NDArray[np.int64] = np.searchsorted(cumulated, draw.random(number) * cumulated[-1]).astype(np.int64)
    places, new = np.arange(number), np.ones(number, dtype=bool)
    if np.isfinite(concentration):
        new = draw.random(number) * (concentration + places) < concentration
    earlier = (draw.random(number) * places).astype(np.int64)
    for place in np.flatnonzero(~new).tolist():
        labels[place] = labels[earlier[place]]
    return labels
