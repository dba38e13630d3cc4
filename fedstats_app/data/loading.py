"""`load_dataset`: from a spec in the configuration to a `Dataset`."""

from typing import Literal, overload

from fedstats_app.data.builtin import load_builtin
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.folder import load_folder
from fedstats_app.data.table import load_hub, load_parquet

_ALLOWED = "builtin, hub:<name>, folder:<absolute path> or parquet:<absolute path>"


@overload
def load_dataset(spec: str, split: Literal["train"], *, image_column: str = "", label_column: str = "") -> Dataset: ...
@overload
def load_dataset(
    spec: str, split: Literal["train", "test"], *, image_column: str = "", label_column: str = ""
) -> Dataset | None: ...
def load_dataset(
    spec: str, split: Literal["train", "test"], *, image_column: str = "", label_column: str = ""
) -> Dataset | None:
    """Load one split of a labelled image data set.

    Parameters
    ----------
    spec : str
        ``builtin``: 10,000 images of Fashion-MNIST that come with the app (`load_builtin`).
        ``hub:<name>``: a data set of the Hugging Face hub (`load_hub`).
        ``folder:<path>``: a folder with one folder of images per class (`load_folder`).
        ``parquet:<path>``: a folder of parquet files, or one (`load_parquet`).
        Paths are absolute or start with ``~``.
    split : {"train", "test"}
        Which part.
    image_column, label_column : str
        For ``hub`` and ``parquet``: the columns; empty to take the only one with a usual name.

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
    if kind in ("builtin", "folder") and (image_column or label_column):
        raise DatasetError(
            f"{spec}: image-column and label-column are for hub: and parquet: only, "
            f"got {image_column!r} and {label_column!r}"
        )
    if spec == "builtin":
        return load_builtin(split)
    if kind == "folder" and where:
        return load_folder(where, split)
    if kind == "parquet" and where:
        return load_parquet(where, split, image_column=image_column, label_column=label_column)
    if kind == "hub" and where:
        return load_hub(where, split, image_column=image_column, label_column=label_column)
    raise DatasetError(f"the data set must be {_ALLOWED}, got {spec!r}")
