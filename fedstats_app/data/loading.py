"""`load_dataset`: from a spec in the configuration to a `Dataset`; and samples without labels, to be classified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, overload

import numpy as np

from fedstats_app.data.builtin import load_builtin
from fedstats_app.data.columns import COLUMNS, Reading, choose_samples
from fedstats_app.data.dataset import Dataset, DatasetError, Kind, SampleSource
from fedstats_app.data.files import is_arrow, is_table_folder, load_arrow, load_files, load_hub
from fedstats_app.data.folder import file_source, load_folder
from fedstats_app.data.layout import find_layout
from fedstats_app.data.table import Suffix, read_files, rows_of

_ALLOWED = "builtin, hub:<name>, folder:, parquet:, csv: or arrow:<absolute path>"


class ReadingOptions(TypedDict, total=False):
    """The attributes of `Reading`, as arguments."""

    image_column: str
    text_column: str
    label_column: str
    label_separator: str
    label_columns: str
    target_column: str
    missing_labels: str
    folder_levels: str
    confined: bool


@overload
def load_dataset(spec: str, split: Literal["train"], **reading: Unpack[ReadingOptions]) -> Dataset: ...
@overload
def load_dataset(spec: str, split: Literal["train", "test"], **reading: Unpack[ReadingOptions]) -> Dataset | None: ...
def load_dataset(spec: str, split: Literal["train", "test"], **reading: Unpack[ReadingOptions]) -> Dataset | None:
    """Load one split of a labelled data set of images or texts.

    Parameters
    ----------
    spec : str
        ``builtin``: 10,000 images of Fashion-MNIST that come with the app (`load_builtin`).
        ``hub:<name>``: a data set of the Hugging Face hub (`load_hub`).
        ``folder:<path>``: a folder with one folder of images, or of text files, per class (`load_folder`).
        ``parquet:<path>``, ``csv:<path>``: a folder of such files, or one (`load_files`).
        ``arrow:<path>``: a folder of datasets' save_to_disk (`load_arrow`); ``folder:`` will do too.
        Paths are absolute or start with ``~``.
    split : {"train", "test"}
        Both have the classes of the training split; None is returned if there is no test split.
    **reading
        See `Reading`: columns of tables (``hub``, ``parquet``, ``csv``, ``arrow``), ``folder_levels`` of folders
        (`load_folder`), and ``confined``.

    Raises
    ------
    DatasetError
        If the spec is not one of these, or for what the loader of its kind refuses.
    """
    if split not in ("train", "test"):
        raise DatasetError(f"{spec}: the split must be 'train' or 'test', got {split!r}")
    kind, _, where = resolved(spec).partition(":")
    options = Reading(**reading)
    if kind in ("builtin", "folder") and (given := [name for name in COLUMNS if getattr(options, name)]):
        named = ", ".join(f"{name.replace('_', '-')} {getattr(options, name)!r}" for name in given)
        raise DatasetError(f"{spec}: columns are of hub:, parquet:, csv: and arrow: only, got {named}")
    if spec == "builtin":
        return load_builtin(split)
    if where:
        match kind:
            case "folder":
                return load_folder(where, split, options.folder_levels)
            case "arrow":
                return load_arrow(where, split, options)
            case "hub":
                return load_hub(where, split, options)
            case "parquet" | "csv":
                return load_files(kind, where, split, options)
    raise DatasetError(f"the data set must be {_ALLOWED}, got {spec!r}")


def is_undivided(spec: str, folder_levels: str = "auto") -> bool:
    """Return whether a data set is one file or one folder of classes, and not a training split without a test split."""
    kind, _, where = resolved(spec).partition(":")
    place = Path(where).expanduser()
    if kind == "folder":
        return find_layout(place, levels=folder_levels, spec=spec).train == place
    return (kind in ("parquet", "csv") and place.is_file()) or (kind == "arrow" and is_table_folder(place))


def resolved(spec: str) -> str:
    """Return a spec with ``arrow`` for a folder that holds what datasets' save_to_disk writes."""
    kind, _, where = spec.partition(":")
    return f"arrow:{where}" if kind == "folder" and where and is_arrow(Path(where).expanduser()) else spec


# What files of tables end in, and by which of the readers of `datasets` they are read.
TABLES: dict[str, Suffix] = {".csv": "csv", ".parquet": "parquet", ".jsonl": "json"}


def unlabelled_files(paths: Sequence[Path], kind: Kind) -> Dataset:
    """Return image or text files as samples."""
    return _unlabelled(file_source(Path(), [str(path) for path in paths], kind), len(paths), kind)


def unlabelled_texts(texts: Sequence[str]) -> Dataset:
    """Return texts as samples; those with bytes that are no UTF-8, as a shell may give them, cannot be read."""
    source = SampleSource(lambda index: texts[index].encode().decode(), lambda index: texts[index])
    return _unlabelled(source, len(texts), "text")


def unlabelled_table(path: Path, kind: Kind, wanted: Reading, usual: Reading) -> Dataset:
    """Return the rows of a table as samples; columns of labels are not looked at.

    Parameters
    ----------
    path : Path
        A file with one of the suffixes of `TABLES`.
    kind : {"image", "text"}
        What is wanted of it.
    wanted : Reading
        The user's columns of images or texts.
    usual : Reading
        Those that the training data had, taken where the table has them and the user names none.

    Raises
    ------
    DatasetError
        If the table cannot be read, has no rows, holds samples of the other kind, or it is not clear in which column.
    """
    table = read_files(TABLES[path.suffix.lower()], [path], path.name)
    of_text = [name.strip() for name in usual.text_column.split(",")]
    text = wanted.text_column or (usual.text_column if set(of_text) <= set(table.column_names) else "")
    image = wanted.image_column or (usual.image_column if usual.image_column in table.column_names else "")
    found, columns = choose_samples(table, Reading(image, text), owner=path.name)
    if found != kind:
        raise DatasetError(
            f"{path.name}: column {columns[0]!r} holds {found}s, the head is for {kind}s; if another of "
            f"{table.column_names} has them, name it with {kind}-column"
        )
    folder = path.absolute().parent
    source, *_ = rows_of(table, kind, columns, path.name, folder=folder, confined=False, owner=path.name)
    return _unlabelled(source, len(table), kind)


def _unlabelled(source: SampleSource, number: int, kind: Kind) -> Dataset:
    """Make a data set of a single class, whose labels are not used."""
    labels = np.zeros(number, dtype=np.int64)
    return Dataset("the samples named", ("unknown",), labels, fingerprint="", source=source, kind=kind)
