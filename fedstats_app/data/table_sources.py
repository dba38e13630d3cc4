"""Samples in the columns of a table: images, or texts."""

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedstats_app.data.dataset import DatasetError

if TYPE_CHECKING:
    import datasets


class _Rows:
    """The rows of a table."""

    def __init__(self, table: "datasets.Dataset", label: str) -> None:
        self._table, self._label = table, label

    def name(self, index: int) -> str:
        """Return the split and row number of a sample."""
        return f"{self._label}[{index}]"


class ImageColumn(_Rows):
    """A source of samples: the image column of a table, an image being its file's bytes, or a file's absolute path.

    Parameters
    ----------
    table : datasets.Dataset
        Whose rows they are.
    image_column : str
        Which column.
    label : str
        The split, to name samples by.
    """

    def __init__(self, table: "datasets.Dataset", image_column: str, label: str) -> None:
        super().__init__(_undecoded(table, image_column), label)
        self._image_column = image_column

    def open(self, index: int) -> Image.Image:
        """Open the image of a row; its pixels are read later.

        Raises
        ------
        ValueError
            If the row holds no image.
        """
        value = self._table[index][self._image_column]
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if isinstance(content, str):
            content, path = None, content
        if isinstance(content, bytes):
            return Image.open(io.BytesIO(content))
        if not isinstance(path, str):
            raise ValueError(f"the row holds no image in {self._image_column!r}")
        if not Path(path).is_absolute():
            raise ValueError(f"the row holds a relative path ({path}) and no bytes")
        return Image.open(path)


_PATHS_TRIED = 50


class ImagePaths(_Rows):
    """A source of samples: the image files that a column of a table names.

    Parameters
    ----------
    table : datasets.Dataset
        Whose rows they are.
    column : str
        Which column: absolute paths, or paths relative to the folder, out of which they do not lead.
    label : str
        The split, to name samples by.
    folder : Path or None
        That of the table; None where it lies in none.
    confined : bool
        Whether absolute paths must lie in it, too.
    """

    def __init__(
        self, table: "datasets.Dataset", column: str, label: str, folder: Path | None, *, confined: bool
    ) -> None:
        super().__init__(table.select_columns([column]), label)
        self._paths: list[str | None] = table[column][:]
        self._column, self._confined = column, confined
        self._folder = None if folder is None else Path(os.path.normpath(folder))

    def open(self, index: int) -> Image.Image:
        """Open the image of a row; its pixels are read later.

        Raises
        ------
        ValueError
            If the row holds no path, or one that it must not.
        """
        return Image.open(self._path(index))

    def name(self, index: int) -> str:
        """Return the path that a row holds, as it stands there."""
        return self._paths[index] or super().name(index)

    def check_some(self, owner: str) -> None:
        """Refuse a column none of whose paths, of some spread over all, leads to a file.

        Raises
        ------
        DatasetError
            If so, with the first one's reason.
        """
        reason = ""
        for index in np.unique(np.linspace(0, len(self._paths) - 1, _PATHS_TRIED).astype(int)).tolist():
            try:
                path = self._path(index)
            except ValueError as error:
                reason = reason or str(error)
                continue
            if path.is_file():
                return
            reason = reason or f"nothing is at {path}"
        raise DatasetError(
            f"{owner}: no path in {self._column!r} leads to an image: {reason}; paths are absolute, or relative to the "
            "folder of the table"
        )

    def stamp(self) -> str:
        """Return a digest of all paths with the files' sizes and times of change: the table does not tell of those."""
        digest = hashlib.sha256()
        for index, text in enumerate(self._paths):
            try:
                status = self._path(index).stat()
                digest.update(f"{text}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            except (OSError, ValueError):
                digest.update(f"{text}\0absent\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _path(self, index: int) -> Path:
        text = self._paths[index]
        if not text:
            raise ValueError(f"the row holds no path in {self._column!r}")
        if self._folder is None:
            if not os.path.isabs(text):
                raise ValueError(f"the row holds a relative path ({text}) and no bytes")
            return Path(text)
        path = Path(os.path.normpath(self._folder / text))
        if (self._confined or not os.path.isabs(text)) and not path.is_relative_to(self._folder):
            raise ValueError(f"the path {text} leads out of the folder of the table")
        return path


class TextColumns(_Rows):
    """A source of samples: the strings of a table's row, those of several columns one after the other, a line each.

    Parameters
    ----------
    table : datasets.Dataset
        Whose rows they are.
    columns : sequence of str
        Which columns.
    label : str
        The split, to name samples by.
    """

    def __init__(self, table: "datasets.Dataset", columns: Sequence[str], label: str) -> None:
        super().__init__(table.select_columns(list(columns)), label)
        self._columns = columns

    def open(self, index: int) -> str:
        """Return the text of a row.

        Raises
        ------
        ValueError
            If a column holds no text there.
        """
        row = self._table[index]
        for column in self._columns:
            if not isinstance(row[column], str):
                raise ValueError(f"the row holds no text in {column!r}")
        return "\n".join(row[column] for column in self._columns)


def _undecoded(table: "datasets.Dataset", column: str) -> "datasets.Dataset":
    """Return the column alone, undecoded: the one rule of `to_rgb` decides about orientation, not the library."""
    import datasets

    images = table.select_columns([column])
    if isinstance(images.features[column], datasets.Image):
        return images.cast_column(column, datasets.Image(decode=False))
    return images
