"""`load_dataset`: from a spec in the configuration to a `Dataset`."""

from typing import Literal, get_args, overload

from fedstats_app.data.builtin import load_builtin
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.folder import load_folder
from fedstats_app.data.table import ColumnChoice, Suffix, load_files, load_hub

_ALLOWED = "builtin, hub:<name>, or folder:, parquet: or csv:<absolute path>"


@overload
def load_dataset(
    spec: str, split: Literal["train"], *, image_column: str = "", text_column: str = "", label_column: str = ""
) -> Dataset: ...
@overload
def load_dataset(
    spec: str, split: Literal["train", "test"], *, image_column: str = "", text_column: str = "", label_column: str = ""
) -> Dataset | None: ...
def load_dataset(
    spec: str, split: Literal["train", "test"], *, image_column: str = "", text_column: str = "", label_column: str = ""
) -> Dataset | None:
    """Load one split of a labelled data set of images or texts.

    Parameters
    ----------
    spec : str
        ``builtin``: 10,000 images of Fashion-MNIST that come with the app (`load_builtin`).
        ``hub:<name>``: a data set of the Hugging Face hub (`load_hub`).
        ``folder:<path>``: a folder with one folder of images, or of text files, per class (`load_folder`).
        ``parquet:<path>``, ``csv:<path>``: a folder of such files, or one (`load_files`).
        Paths are absolute or start with ``~``.
    split : {"train", "test"}
        Which part.
    image_column, label_column : str
        For ``hub``, ``parquet`` and ``csv``: the columns; empty to take the only one with a usual name.
    text_column : str
        Likewise; several, separated by commas, make one text of a line each.

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
    kind, _, where = spec.partition(":")
    columns = ColumnChoice(image_column, text_column, label_column)
    if kind in ("builtin", "folder") and columns != ColumnChoice():
        raise DatasetError(
            f"{spec}: image-column, text-column and label-column are for hub:, parquet: and csv: only, "
            f"got {image_column!r}, {text_column!r} and {label_column!r}"
        )
    if spec == "builtin":
        return load_builtin(split)
    if kind == "folder" and where:
        return load_folder(where, split)
    if kind == "hub" and where:
        return load_hub(where, split, columns)
    for suffix in get_args(Suffix):
        if kind == suffix and where:
            return load_files(suffix, where, split, columns)
    raise DatasetError(f"the data set must be {_ALLOWED}, got {spec!r}")
