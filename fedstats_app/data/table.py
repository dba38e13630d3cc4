"""Tables of images or texts as data sets: their rows as samples, their columns as labels and groups."""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from fedstats_app.data.columns import (
    LABEL_COLUMNS,
    Reading,
    choose_column,
    choose_samples,
    is_integer,
    is_string,
    read_labels,
    scalar_columns,
)
from fedstats_app.data.dataset import Dataset, DatasetError, Kind, SampleSource
from fedstats_app.data.paths import open_image, regular_file

if TYPE_CHECKING:
    import datasets

Suffix = Literal["parquet", "csv", "json"]
_PATHS_TRIED = 50


def read_files(suffix: Suffix, files: list[Path], spec: str) -> "datasets.Dataset":
    """Read files of one kind as one table; `DatasetError` names those that cannot be read."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        with quiet_progress():
            return datasets.load_dataset(suffix, data_files=[str(file) for file in files], split="train")
    except (OSError, ValueError, DatasetsError) as error:
        cause = error.__cause__ or error
        names = [file.name for file in files]
        raise DatasetError(f"{spec}: {names} cannot be read ({type(cause).__name__}: {cause})") from error


def table_dataset(
    spec: str,
    split: str,
    tables: dict[str, "datasets.Dataset"],
    reading: Reading,
    fingerprint: str,
    *,
    notes: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Dataset:
    """Return one split of a data set that is given as tables, the training split's in any case.

    Parameters
    ----------
    spec : str
        The data set, to begin errors with.
    split : {"train", "test"}
        Which part.
    tables : dict
        By split.
    reading : Reading
        The user's columns.
    fingerprint : str
        Of the tables' content.
    notes : tuple of str
        Of the data set.
    folder : Path, optional
        Where the table lies, for image files that it names by relative paths.

    Raises
    ------
    DatasetError
        For what `choose_column`, `read_labels` and `rows_of` refuse.
    """
    train, table = tables["train"], tables[split]
    owner = f"{spec} ({split})"
    kind, held_in = choose_samples(train, reading, owner=spec)
    label_column = choose_column(reading.label_column, train.column_names, LABEL_COLUMNS, role="label", owner=spec)
    for column, role in (*((column, kind) for column in held_in), (label_column, "label")):
        choose_column(column, table.column_names, (), role=role, owner=owner)
    labels, class_names = read_labels(table, label_column, owner=owner)
    source, stamp = rows_of(table, kind, held_in, split, folder=folder, confined=reading.confined, owner=owner)
    dataset = Dataset(
        name=owner,
        class_names=class_names,
        labels=labels,
        fingerprint=hashlib.sha256(f"{fingerprint} {stamp}".encode()).hexdigest() if stamp else fingerprint,
        source=source,
        columns=scalar_columns(table, excluded={*held_in, label_column}),
        numbered=is_integer(table.features[label_column]),
        kind=kind,
        notes=notes,
    )
    if split == "train":
        return dataset
    return dataset.with_class_names(read_labels(train, label_column, owner=f"{spec} (train)")[1])


def rows_of(
    table: "datasets.Dataset",
    kind: Kind,
    columns: tuple[str, ...],
    label: str,
    *,
    folder: Path | None,
    confined: bool,
    owner: str,
) -> tuple[SampleSource, str]:
    """Return the rows of a table as samples.

    Parameters
    ----------
    table, kind, columns
        What holds them, as `choose_samples` found it.
    label : str
        To name samples by, with the number of the row.
    folder : Path or None
        That of the table, from which image files that it names are found; None if it lies in none.
    confined : bool
        Whether absolute paths of image files must lie in it, too; relative ones do not lead out of it in any case.
    owner : str
        The data set, to begin errors with.

    Returns
    -------
    source : SampleSource
        Opens a text: the strings of its columns, a line each. Or an image: from bytes, or from a file.
    stamp : str
        What the content of the samples depends on beside that of the table; "" for nothing.

    Raises
    ------
    DatasetError
        If none of the paths of some spread over all rows leads to an image file.
    """
    rows = table.select_columns(list(columns))
    if kind == "text":

        def text(index: int) -> str:
            row = rows[index]
            for column in columns:
                if not isinstance(row[column], str):
                    raise ValueError(f"the row holds no text in {column!r}")
            return "\n".join(row[column] for column in columns)

        # Which columns were meant decides what a sample is: features of others must not be taken for theirs.
        return SampleSource(text, lambda index: f"{label}[{index}]"), str(columns)
    [column] = columns
    if not is_string(table.features[column]):
        undecoded = _undecoded(rows, column)
        return (
            SampleSource(lambda index: _image(undecoded[index][column], column), lambda index: f"{label}[{index}]"),
            "",
        )
    paths = _ImagePaths(table[column][:], column, folder, confined=confined)
    paths.check_some(owner)
    source = SampleSource(
        lambda index: open_image(regular_file(paths.path(index))),
        lambda index: paths.texts[index] or f"{label}[{index}]",
    )
    return source, f"{columns} {paths.stamp()}"


def _undecoded(rows: "datasets.Dataset", column: str) -> "datasets.Dataset":
    """Return the column undecoded: the one rule of `to_rgb` decides about orientation, not the library."""
    import datasets

    if isinstance(rows.features[column], datasets.Image):
        return rows.cast_column(column, datasets.Image(decode=False))
    return rows


def _image(value: object, column: str) -> Image.Image:
    """Open the image of a row: the bytes of its file, or that file by its absolute path."""
    content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if isinstance(content, bytes):
        return Image.open(io.BytesIO(content))
    if not isinstance(path, str):
        raise ValueError(f"the row holds no image in {column!r}")
    if not Path(path).is_absolute():
        raise ValueError(f"the row holds a relative path ({path}) and no bytes")
    return open_image(regular_file(Path(path)))


class _ImagePaths:
    """The paths of image files in a column, each checked when it is used."""

    def __init__(self, texts: Sequence[str | None], column: str, folder: Path | None, *, confined: bool) -> None:
        self.texts, self._column, self._confined = texts, column, confined
        self._folder = None if folder is None else Path(os.path.normpath(folder))

    def path(self, index: int) -> Path:
        text = self.texts[index]
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

    def check_some(self, owner: str) -> None:
        reason = ""
        for index in np.unique(np.linspace(0, len(self.texts) - 1, _PATHS_TRIED).astype(int)).tolist():
            try:
                path = self.path(index)
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
        for index, text in enumerate(self.texts):
            try:
                status = self.path(index).stat()
                line = f"{text}\0{status.st_size}\0{status.st_mtime_ns}\n"
            except (OSError, ValueError):
                line = f"{text}\0absent\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


@contextmanager
def quiet_progress() -> Iterator[None]:
    """Switch the library's progress bars off: many worker processes write into one log."""
    import datasets

    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
