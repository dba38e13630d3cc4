"""Samples without labels, to be classified: files, texts, and the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstats_app.data.columns import choose_samples
from fedstats_app.data.dataset import Dataset, DatasetError, Kind, SampleSource
from fedstats_app.data.folder import FolderSource
from fedstats_app.data.table import ColumnChoice, Suffix, read_files, row_source

# What files of tables end in, and by which of the readers of `datasets` they are read.
TABLES: dict[str, Suffix] = {".csv": "csv", ".parquet": "parquet", ".jsonl": "json"}


class _Texts:
    """A source of samples: texts that are their own names."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def open(self, index: int) -> str:
        """Return a text."""
        return self._texts[index]

    def name(self, index: int) -> str:
        """Return the text."""
        return self._texts[index]


def unlabelled_files(paths: Sequence[Path], kind: Kind) -> Dataset:
    """Return image or text files as samples."""
    return _unlabelled(FolderSource(Path(), [str(path) for path in paths], kind), len(paths), kind)


def unlabelled_texts(texts: Sequence[str]) -> Dataset:
    """Return texts as samples."""
    return _unlabelled(_Texts(texts), len(texts), "text")


def unlabelled_table(path: Path, kind: Kind, wanted: ColumnChoice, usual: ColumnChoice) -> Dataset:
    """Return the rows of a table as samples; columns of labels are not looked at.

    Parameters
    ----------
    path : Path
        A file with one of the suffixes of `TABLES`.
    kind : {"image", "text"}
        What is wanted of it.
    wanted : ColumnChoice
        The user's columns of images or texts.
    usual : ColumnChoice
        Those that the training data had, taken where the table has them and the user names none.

    Raises
    ------
    DatasetError
        If the table cannot be read, has no rows, holds samples of the other kind, or it is not clear in which column.
    """
    table = read_files(TABLES[path.suffix.lower()], [path], path.name)
    of_text = [name.strip() for name in usual.text.split(",")]
    text = wanted.text or (usual.text if set(of_text) <= set(table.column_names) else "")
    image = wanted.image or (usual.image if usual.image in table.column_names else "")
    found, columns = choose_samples(table, image, text, owner=path.name)
    if found != kind:
        raise DatasetError(
            f"{path.name}: column {columns[0]!r} holds {found}s, the head is for {kind}s; if another of "
            f"{table.column_names} has them, name it with {kind}-column"
        )
    folder = path.absolute().parent
    source = row_source(table, kind, columns, path.name, folder=folder, confined=False, owner=path.name)
    return _unlabelled(source, len(table), kind)


def _unlabelled(source: SampleSource, number: int, kind: Kind) -> Dataset:
    """Say that all are of one class, which nobody asks for."""
    labels = np.zeros(number, dtype=np.int64)
    return Dataset("the samples named", ("unknown",), labels, fingerprint="", source=source, kind=kind)
