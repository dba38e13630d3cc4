"""Tables of images: parquet files, and data sets of the Hugging Face hub."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from fedstats_app.data.columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    ScalarColumns,
    choose_column,
    is_integer,
    read_labels,
)
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.paths import existing_path

if TYPE_CHECKING:
    import datasets

_HUB_TIMEOUT_SECONDS = 20.0
_EDGE_BYTES = 1 << 20
_SPLITS = ("train", "test")
_OFFLINE_HELP = (
    "If it was downloaded on this machine before, set HF_HUB_OFFLINE=1 in the environment; else download it where the "
    "hub can be reached, copy its parquet files here and use parquet:<absolute path of their folder>"
)


class TableSource:
    """The image column of a table; an image is its file's bytes, or the absolute path of the file."""

    def __init__(self, table: "datasets.Dataset", image_column: str, label: str) -> None:
        self._table = table
        self._image_column = image_column
        self._label = label

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

    def name(self, index: int) -> str:
        """Return the split and row number of a sample."""
        return f"{self._label}[{index}]"


def load_parquet(path: str, split: str, *, image_column: str = "", label_column: str = "") -> Dataset | None:
    """Load parquet files of images.

    A folder, in it or in its sub-folder ``data`` the files ``train-*.parquet`` (or ``train.parquet``) and, for the test
    split if there is one, ``test-*.parquet``; or a single file, all of it training data.

    Parameters
    ----------
    path : str
        Absolute, or starting with ``~``.
    split : {"train", "test"}
        Which part.
    image_column, label_column : str
        The columns; empty to take the only one with a usual name.

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
    spec = f"parquet:{path}"
    files = _parquet_files(existing_path(path, owner=spec), spec)
    if not files[split]:
        return None
    tables = {part: _read_parquet(files[part], spec) for part in dict.fromkeys(("train", split))}
    return _dataset(spec, split, tables, image_column, label_column, _files_fingerprint(split, files[split]))


def load_hub(name: str, split: str, *, image_column: str = "", label_column: str = "") -> Dataset | None:
    """Load a data set of images from the Hugging Face hub through flwr-datasets, in the hub's order.

    The splits are those called ``train`` and ``test`` on the hub. With ``HF_HUB_OFFLINE=1`` in the environment only
    what was downloaded before is used, and nothing is asked of the network; without it, the hub is asked once for the
    data set before anything is loaded, so that a machine that cannot reach it hears so within seconds.

    Parameters
    ----------
    name : str
        The data set's name on the hub, such as ``uoft-cs/cifar10``.
    split : {"train", "test"}
        Which part.
    image_column, label_column : str
        The columns; empty to take the only one with a usual name.

    Returns
    -------
    Dataset or None
        None if the test split is asked for and there is none.

    Raises
    ------
    DatasetError
        If the hub cannot be reached or has no such data set, or for what `choose_column` and `read_labels` refuse.
    """
    spec = f"hub:{name}"
    _ask_hub(name, spec)
    from flwr_datasets import FederatedDataset

    federated = FederatedDataset(dataset=name, partitioners={}, shuffle=False)
    try:
        with _quiet_progress():
            tables = {"train": federated.load_split("train")}
            if split not in (tables["train"].info.splits or tables):
                return None
            tables[split] = federated.load_split(split)
    except OSError as error:
        raise DatasetError(f"{spec}: cannot be loaded ({type(error).__name__}: {error}). {_OFFLINE_HELP}") from error
    except (ValueError, RuntimeError) as error:
        raise DatasetError(f"{spec}: cannot be loaded ({type(error).__name__}: {error})") from error
    # The fingerprint that the library itself names its cache files by: it changes with the revision on the hub.
    fingerprint = hashlib.sha256(f"hub {name} {split} {tables[split]._fingerprint}".encode()).hexdigest()
    return _dataset(spec, split, tables, image_column, label_column, fingerprint)


def _ask_hub(name: str, spec: str) -> None:
    """Find out in bounded time whether the hub has a data set; the loader itself retries for half a minute or more."""
    import httpx
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().dataset_info(name, timeout=_HUB_TIMEOUT_SECONDS)
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise DatasetError(
            f"{spec}: {constants.ENDPOINT} does not give this data set ({type(error).__name__}: {error}). "
            f"{_OFFLINE_HELP}"
        ) from error


def _parquet_files(path: Path, spec: str) -> dict[str, list[Path]]:
    if path.is_file():
        return {"train": [path], "test": []}
    for folder in (path, path / "data"):
        files = {part: sorted({*folder.glob(f"{part}-*.parquet"), *folder.glob(f"{part}.parquet")}) for part in _SPLITS}
        if files["train"]:
            return files
    raise DatasetError(f"{spec}: no train-*.parquet in {path} or {path / 'data'}; a single file may also be given")


def _files_fingerprint(split: str, files: list[Path]) -> str:
    """Hash names, sizes and the first and last MiB of files (a parquet file ends with its table of contents)."""
    digest = hashlib.sha256(f"parquet {split}\n".encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_EDGE_BYTES))
            stream.seek(max(0, size - _EDGE_BYTES))
            digest.update(stream.read(_EDGE_BYTES))
    return digest.hexdigest()


def _read_parquet(files: list[Path], spec: str) -> "datasets.Dataset":
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        with _quiet_progress():
            return datasets.load_dataset("parquet", data_files=[str(file) for file in files], split="train")
    except (OSError, ValueError, DatasetsError) as error:
        cause = error.__cause__ or error
        names = [file.name for file in files]
        raise DatasetError(f"{spec}: {names} cannot be read ({type(cause).__name__}: {cause})") from error


def _dataset(
    spec: str, split: str, tables: dict[str, "datasets.Dataset"], image_column: str, label_column: str, fingerprint: str
) -> Dataset:
    import datasets

    train, table = tables["train"], tables[split]
    image_column = choose_column(image_column, train.column_names, IMAGE_COLUMNS, role="image", owner=spec)
    label_column = choose_column(label_column, train.column_names, LABEL_COLUMNS, role="label", owner=spec)
    for column, role in ((image_column, "image"), (label_column, "label")):
        choose_column(column, table.column_names, (), role=role, owner=f"{spec} ({split})")
    labels, class_names = read_labels(table, label_column, owner=f"{spec} ({split})")
    images = table.select_columns([image_column])
    if isinstance(images.features[image_column], datasets.Image):
        # Undecoded: the one rule of `to_rgb` decides about orientation, not the library's version.
        images = images.cast_column(image_column, datasets.Image(decode=False))
    dataset = Dataset(
        name=f"{spec} ({split})",
        class_names=class_names,
        labels=labels,
        fingerprint=fingerprint,
        source=TableSource(images, image_column, split),
        columns=ScalarColumns(table, excluded={image_column, label_column}),
        numbered=is_integer(table.features[label_column]),
    )
    if split == "train":
        return dataset
    return dataset.with_class_names(read_labels(train, label_column, owner=f"{spec} (train)")[1])


@contextmanager
def _quiet_progress() -> Iterator[None]:
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
