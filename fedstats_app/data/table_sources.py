"""Samples in the columns of a table: images, or texts."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

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
    """A source of samples: the image column of a table, an image being its file's bytes or the file's absolute path.

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
