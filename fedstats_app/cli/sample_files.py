"""Samples named on the command line - image or text files, or texts - read by the one rule for all data."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedstats_app.cli.text import printable
from fedstats_app.data import Dataset, Sample, SampleSource, UnreadableSampleError
from fedstats_app.data.dataset import Kind
from fedstats_app.data.folder import FolderSource
from fedstats_app.data.folder_layout import SUFFIXES, visible_files


class Texts:
    """A source of samples: texts that are their own names."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def open(self, index: int) -> str:
        """Return a text."""
        return self._texts[index]

    def name(self, index: int) -> str:
        """Return the text."""
        return self._texts[index]


def as_dataset(paths: Sequence[Path], kind: Kind) -> Dataset:
    """Return files as samples of one class, which nobody asks for."""
    return _unlabelled(FolderSource(Path(), [str(path) for path in paths], kind), len(paths), kind)


def texts_as_dataset(texts: Sequence[str]) -> Dataset:
    """Return texts as samples of one class, which nobody asks for."""
    return _unlabelled(Texts(texts), len(texts), "text")


def _unlabelled(source: SampleSource, number: int, kind: Kind) -> Dataset:
    labels = np.zeros(number, dtype=np.int64)
    return Dataset("the samples named", ("unknown",), labels, fingerprint="", source=source, kind=kind)


def find_files(names: Sequence[str], kind: Kind) -> tuple[list[Path], dict[str, str]]:
    """Find the image or text files that names stand for.

    Parameters
    ----------
    names : sequence of str
        Files, taken whatever their suffix, and folders, searched at all depths for files that end as images, or texts,
        do. Hidden files and folders in them are passed over.
    kind : {"image", "text"}
        What is wanted.

    Returns
    -------
    paths : list of Path
        In the order of the names, sorted within a folder.
    problems : dict
        From a name that stands for no such file to the reason.
    """
    paths: list[Path] = []
    problems: dict[str, str] = {}
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = sorted(one for one in visible_files(path) if one.suffix.lower() in SUFFIXES[kind])
            paths += found
            if not found:
                problems[name] = f"no {kind} in this folder; {kind}s end in {', '.join(sorted(SUFFIXES[kind]))}"
        elif path.is_file():
            paths.append(path)
        else:
            # Not opened to find out: a pipe would be waited for.
            problems[name] = "not a file" if path.exists() else "no such file or folder"
    return paths, problems


def readable(dataset: Dataset, indices: Sequence[int], read: list[int], unreadable: dict[str, str]) -> Iterator[Sample]:
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


def tell_unreadable(command: str, unreadable: Mapping[str, str]) -> int:
    """Name on stderr what could not be read, and why; return the command's exit code."""
    for name, reason in unreadable.items():
        print(f"fedstats {command}: not read: {printable(name, 1000)}: {printable(reason, 1000)}", file=sys.stderr)
    return 1 if unreadable else 0
