"""Image files named on the command line, read by the one rule for all data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedstats_app.data import Dataset, Sample, UnreadableSampleError
from fedstats_app.data.folder import IMAGE_SUFFIXES


class ImageFiles:
    """A source of samples: files by their paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def open(self, index: int) -> Image.Image:
        """Open a file; its pixels are read later."""
        return Image.open(self._paths[index])

    def name(self, index: int) -> str:
        """Return the path as it was found."""
        return str(self._paths[index])


def as_dataset(paths: Sequence[Path]) -> Dataset:
    """Return files as samples of one class, which nobody asks for."""
    labels = np.zeros(len(paths), dtype=np.int64)
    return Dataset("the files named", ("unknown",), labels, fingerprint="", source=ImageFiles(paths))


def find_images(names: Sequence[str]) -> tuple[list[Path], dict[str, str]]:
    """Find the image files that names stand for.

    Parameters
    ----------
    names : sequence of str
        Files, taken whatever their suffix, and folders, searched at all depths for files that end as images do. Hidden
        files and folders in them are passed over.

    Returns
    -------
    paths : list of Path
        In the order of the names, sorted within a folder.
    problems : dict
        From a name that stands for no image to the reason.
    """
    paths: list[Path] = []
    problems: dict[str, str] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = sorted(_images_below(path))
            paths += found
            if not found:
                problems[name] = f"no image in this folder; images end in {', '.join(sorted(IMAGE_SUFFIXES))}"
        elif path.is_file():
            paths.append(path)
        else:
            # Not opened to find out: a pipe would be waited for.
            problems[name] = "not a file" if path.exists() else "no such file or folder"
    return paths, problems


def _images_below(folder: Path) -> Iterator[Path]:
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in files:
            path = Path(directory, name)
            if not name.startswith(".") and path.suffix.lower() in IMAGE_SUFFIXES:
                yield path


def readable(
    dataset: Dataset, indices: Sequence[int], read: list[int], unreadable: dict[str, str]
) -> Iterator[Sample]:
    """Yield the samples that can be read, one in memory at a time.

    Parameters
    ----------
    dataset : Dataset
        Where they are.
    indices : sequence of int
        Which ones.
    read : list of int
        The index of every sample yielded is appended.
    unreadable : dict
        Gets the name and the reason of every other.
    """
    for index in indices:
        try:
            sample = dataset.sample(index)
        except UnreadableSampleError as error:
            unreadable[error.name] = error.reason
            continue
        read.append(index)
        yield sample
