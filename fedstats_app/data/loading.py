"""`load_dataset`: from a spec in the configuration to a `Dataset`."""

from pathlib import Path
from typing import Literal, overload

from fedstats_app.data.arrow import is_arrow, is_table_folder, load_arrow
from fedstats_app.data.builtin import load_builtin
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.folder import load_folder
from fedstats_app.data.folder_layout import find_layout
from fedstats_app.data.hub import load_hub
from fedstats_app.data.synthetic import load_synthetic
from fedstats_app.data.table import ColumnChoice, Suffix, load_files

_TABLES: tuple[Suffix, ...] = ("parquet", "csv")
_ALLOWED = "builtin, hub:<name>, folder:, parquet:, csv: or arrow:<absolute path>, or synthetic:<C>:<absolute path>"


@overload
def load_dataset(
    spec: str,
    split: Literal["train"],
    *,
    image_column: str = "",
    text_column: str = "",
    label_column: str = "",
    folder_levels: str = "auto",
    confined: bool = False,
) -> Dataset: ...
@overload
def load_dataset(
    spec: str,
    split: Literal["train", "test"],
    *,
    image_column: str = "",
    text_column: str = "",
    label_column: str = "",
    folder_levels: str = "auto",
    confined: bool = False,
) -> Dataset | None: ...
def load_dataset(
    spec: str,
    split: Literal["train", "test"],
    *,
    image_column: str = "",
    text_column: str = "",
    label_column: str = "",
    folder_levels: str = "auto",
    confined: bool = False,
) -> Dataset | None:
    """Load one split of a labelled data set of images or texts.

    Parameters
    ----------
    spec : str
        ``builtin``: 10,000 images of Fashion-MNIST that come with the app (`load_builtin`).
        ``hub:<name>``: a data set of the Hugging Face hub (`load_hub`).
        ``folder:<path>``: a folder with one folder of images, or of text files, per class (`load_folder`).
        ``parquet:<path>``, ``csv:<path>``: a folder of such files, or one (`load_files`).
        ``arrow:<path>``: a folder of datasets' save_to_disk (`load_arrow`); ``folder:`` will do too.
        ``synthetic:<C>:<path>``: made-up images of C classes, by a file of clients' sizes (`load_synthetic`).
        Paths are absolute or start with ``~``.
    split : {"train", "test"}
        Which part.
    image_column, label_column : str
        Columns of tables (``hub``, ``parquet``, ``csv``, ``arrow``); empty for the only one with a usual name.
    text_column : str
        Likewise; several, separated by commas, make one text of a line each.
    folder_levels : {"auto", "class", "domain/class"}
        For ``folder``: what the folders in it are (`load_folder`).
    confined : bool
        Whether image files that a table names must lie in the table's folder.

    Returns
    -------
    Dataset or None
        None only if the test split is asked for and the data set has none. Both splits have the classes of the training
        split.

    Raises
    ------
    DatasetError
        If the spec is not one of these, or for what the loader of its kind refuses.
    """
    if split not in ("train", "test"):
        raise DatasetError(f"{spec}: the split must be 'train' or 'test', got {split!r}")
    kind, _, where = resolved(spec).partition(":")
    columns = ColumnChoice(image_column, text_column, label_column, confined)
    if kind in ("builtin", "folder", "synthetic") and columns.named:
        raise DatasetError(
            f"{spec}: image-column, text-column and label-column are for hub:, parquet:, csv: and arrow: only, "
            f"got {image_column!r}, {text_column!r} and {label_column!r}"
        )
    if spec == "builtin":
        return load_builtin(split)
    if kind == "synthetic" and where:
        return load_synthetic(where, split)
    if kind == "folder" and where:
        return load_folder(where, split, folder_levels)
    if kind == "arrow" and where:
        return load_arrow(where, split, columns)
    if kind == "hub" and where:
        return load_hub(where, split, columns)
    for suffix in _TABLES:
        if kind == suffix and where:
            return load_files(suffix, where, split, columns)
    raise DatasetError(f"the data set must be {_ALLOWED}, got {spec!r}")


def is_undivided(spec: str, folder_levels: str = "auto") -> bool:
    """Return whether a data set is one file or one folder of classes, and not a training split without a test split."""
    kind, _, where = resolved(spec).partition(":")
    place = Path(where).expanduser()
    if kind == "folder":
        return find_layout(place, levels=folder_levels, spec=spec).train == place
    return (kind in _TABLES and place.is_file()) or (kind == "arrow" and is_table_folder(place))


def resolved(spec: str) -> str:
    """Return a spec with ``arrow`` for a folder that holds what datasets' save_to_disk writes."""
    kind, _, where = spec.partition(":")
    return f"arrow:{where}" if kind == "folder" and where and is_arrow(Path(where).expanduser()) else spec
