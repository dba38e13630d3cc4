"""Tables of images or texts, and the parquet and CSV files that hold them."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedstats_app.data.columns import (
    LABEL_COLUMNS,
    ScalarColumns,
    choose_column,
    choose_samples,
    is_integer,
    is_string,
    read_labels,
)
from fedstats_app.data.dataset import Dataset, DatasetError, SampleSource
from fedstats_app.data.paths import existing_path
from fedstats_app.data.splits import choose_splits, split_of
from fedstats_app.data.table_sources import ImageColumn, ImagePaths, TextColumns

if TYPE_CHECKING:
    import datasets

Suffix = Literal["parquet", "csv"]
_EDGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that a user names, each "" to take the only one with a usual name.

    Attributes
    ----------
    image, label : str
        One column.
    text : str
        One column, or several separated by commas.
    confined : bool
        Whether image files that a table names must lie in the table's folder.
    """

    image: str = ""
    text: str = ""
    label: str = ""
    confined: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that are named."""
        return tuple(name for name in (self.image, self.text, self.label) if name)


def load_files(suffix: Suffix, path: str, split: str, columns: ColumnChoice) -> Dataset | None:
    """Load parquet or CSV files of images or texts.

    A folder, in it or in its sub-folder ``data`` the files ``train-*.parquet`` (or ``train.parquet``) and, for the test
    split if there is one, ``test-*.parquet``, in the spellings of `choose_splits`; or a single file, all of it training
    data. Likewise for CSV. Images may also be files that a column names, by paths relative to the table's folder.

    Parameters
    ----------
    suffix : {"parquet", "csv"}
        Of the files.
    path : str
        Absolute, or starting with ``~``.
    split : {"train", "test"}
        Which part.
    columns : ColumnChoice
        The user's.

    Returns
    -------
    Dataset or None
        None if the test split is asked for and there is none.

    Raises
    ------
    DatasetError
        If the path is relative or missing, if it has no such files or they cannot be read, or for what `choose_column`
        and `read_labels` refuse.
    """
    spec = f"{suffix}:{path}"
    files, notes = _table_files(existing_path(path, owner=spec), suffix, spec)
    if not files[split]:
        return None
    tables = {part: _read_files(suffix, files[part], spec) for part in dict.fromkeys(("train", split))}
    fingerprint = files_fingerprint(suffix, split, files[split])
    return table_dataset(spec, split, tables, columns, fingerprint, notes=notes, folder=files[split][0].parent)


def _table_files(path: Path, suffix: Suffix, spec: str) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the files of the training and of the test split, and how they were chosen where that is worth a note."""
    if path.is_file():
        return {"train": [path], "test": []}, ()
    for folder in (path, path / "data"):
        files = sorted(folder.glob(f"[!.]*.{suffix}"))
        kinds = [file.stem.split("-")[0] for file in files]  # train-00000-of-00002
        chosen = choose_splits(set(kinds))
        if chosen.train is not None:
            of = {name: [file for file, kind in zip(files, kinds, strict=True) if kind == name] for name in set(kinds)}
            return {"train": of[chosen.train], "test": of.get(chosen.test or "", [])}, chosen.notes
        if len(files) == 1 and split_of(files[0].stem)[0] in (None, "train"):
            return {"train": files, "test": []}, (f"all data are those of {files[0].name}",)
    raise DatasetError(f"{spec}: no train-*.{suffix} in {path} or {path / 'data'}; a single file may also be given")


def files_fingerprint(kind: str, split: str, files: Sequence[Path]) -> str:
    """Hash names, sizes and the first and last MiB of files (a parquet file ends with its table of contents)."""
    digest = hashlib.sha256(f"{kind} {split}\n".encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_EDGE_BYTES))
            stream.seek(max(0, size - _EDGE_BYTES))
            digest.update(stream.read(_EDGE_BYTES))
    return digest.hexdigest()


def _read_files(suffix: Suffix, files: list[Path], spec: str) -> "datasets.Dataset":
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
    columns: ColumnChoice,
    fingerprint: str,
    *,
    notes: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Dataset:
    """Return one split of a data set that is given as tables.

    Parameters
    ----------
    spec : str
        The data set, to begin errors with.
    split : {"train", "test"}
        Which part.
    tables : dict
        From split to its table, the training split's in any case.
    columns : ColumnChoice
        The user's.
    fingerprint : str
        Of the tables' content.
    notes : tuple of str
        Of the data set.
    folder : Path, optional
        Where the table lies, for image files that it names by relative paths.

    Raises
    ------
    DatasetError
        For what `choose_column`, `read_labels` and `ImagePaths` refuse.
    """
    train, table = tables["train"], tables[split]
    owner = f"{spec} ({split})"
    kind, held_in = choose_samples(train, columns.image, columns.text, owner=spec)
    label_column = choose_column(columns.label, train.column_names, LABEL_COLUMNS, role="label", owner=spec)
    for column, role in (*((column, kind) for column in held_in), (label_column, "label")):
        choose_column(column, table.column_names, (), role=role, owner=owner)
    labels, class_names = read_labels(table, label_column, owner=owner)
    source: SampleSource
    if kind == "text":
        source = TextColumns(table, held_in, split)
        # Which columns were meant decides what a sample is: features of others must not be taken for theirs.
        fingerprint = hashlib.sha256(f"{fingerprint} {held_in}".encode()).hexdigest()
    elif is_string(table.features[held_in[0]]):
        source = ImagePaths(table, held_in[0], split, folder, confined=columns.confined)
        source.check_some(owner)
        fingerprint = hashlib.sha256(f"{fingerprint} {held_in} {source.stamp()}".encode()).hexdigest()
    else:
        source = ImageColumn(table, held_in[0], split)
    dataset = Dataset(
        name=owner,
        class_names=class_names,
        labels=labels,
        fingerprint=fingerprint,
        source=source,
        columns=ScalarColumns(table, excluded={*held_in, label_column}),
        numbered=is_integer(table.features[label_column]),
        kind=kind,
        notes=notes,
    )
    if split == "train":
        return dataset
    return dataset.with_class_names(read_labels(train, label_column, owner=f"{spec} (train)")[1])


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
