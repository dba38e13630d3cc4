"""Tables of images or texts: parquet and CSV files, and data sets of the Hugging Face hub."""

import hashlib
from collections.abc import Iterator
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
    read_labels,
)
from fedstats_app.data.dataset import Dataset, DatasetError, SampleSource
from fedstats_app.data.paths import existing_path
from fedstats_app.data.table_sources import ImageColumn, TextColumns

if TYPE_CHECKING:
    import datasets

Suffix = Literal["parquet", "csv"]
_HUB_TIMEOUT_SECONDS = 20.0
_EDGE_BYTES = 1 << 20
_SPLITS = ("train", "test")
_OFFLINE_HELP = (
    "If it was downloaded on this machine before, set HF_HUB_OFFLINE=1 in the environment; else download it where the "
    "hub can be reached, copy its parquet files here and use parquet:<absolute path of their folder>"
)


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that a user names, each "" to take the only one with a usual name.

    Attributes
    ----------
    image, label : str
        One column.
    text : str
        One column, or several separated by commas.
    """

    image: str = ""
    text: str = ""
    label: str = ""


def load_files(suffix: Suffix, path: str, split: str, columns: ColumnChoice) -> Dataset | None:
    """Load parquet or CSV files of images or texts.

    A folder, in it or in its sub-folder ``data`` the files ``train-*.parquet`` (or ``train.parquet``) and, for the test
    split if there is one, ``test-*.parquet``; or a single file, all of it training data. Likewise for CSV.

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
    files = _table_files(existing_path(path, owner=spec), suffix, spec)
    if not files[split]:
        return None
    tables = {part: _read_files(suffix, files[part], spec) for part in dict.fromkeys(("train", split))}
    return _dataset(spec, split, tables, columns, _files_fingerprint(suffix, split, files[split]))


def load_hub(name: str, split: str, columns: ColumnChoice) -> Dataset | None:
    """Load a data set of images or texts from the Hugging Face hub through flwr-datasets, in the hub's order.

    The splits are those called ``train`` and ``test`` on the hub. With ``HF_HUB_OFFLINE=1`` in the environment only
    what was downloaded before is used, and nothing is asked of the network; without it, the hub is asked once for the
    data set before anything is loaded, so that a machine that cannot reach it hears so within seconds.

    Parameters
    ----------
    name : str
        The data set's name on the hub, such as ``uoft-cs/cifar10``.
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
    return _dataset(spec, split, tables, columns, fingerprint)


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


def _table_files(path: Path, suffix: Suffix, spec: str) -> dict[str, list[Path]]:
    if path.is_file():
        return {"train": [path], "test": []}
    for folder in (path, path / "data"):
        patterns = {part: (f"{part}-*.{suffix}", f"{part}.{suffix}") for part in _SPLITS}
        files = {part: sorted({file for glob in patterns[part] for file in folder.glob(glob)}) for part in _SPLITS}
        if files["train"]:
            return files
    raise DatasetError(f"{spec}: no train-*.{suffix} in {path} or {path / 'data'}; a single file may also be given")


def _files_fingerprint(suffix: Suffix, split: str, files: list[Path]) -> str:
    """Hash names, sizes and the first and last MiB of files (a parquet file ends with its table of contents)."""
    digest = hashlib.sha256(f"{suffix} {split}\n".encode())
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
        with _quiet_progress():
            return datasets.load_dataset(suffix, data_files=[str(file) for file in files], split="train")
    except (OSError, ValueError, DatasetsError) as error:
        cause = error.__cause__ or error
        names = [file.name for file in files]
        raise DatasetError(f"{spec}: {names} cannot be read ({type(cause).__name__}: {cause})") from error


def _dataset(
    spec: str, split: str, tables: dict[str, "datasets.Dataset"], columns: ColumnChoice, fingerprint: str
) -> Dataset:
    train, table = tables["train"], tables[split]
    kind, held_in = choose_samples(train, columns.image, columns.text, owner=spec)
    label_column = choose_column(columns.label, train.column_names, LABEL_COLUMNS, role="label", owner=spec)
    for column, role in (*((column, kind) for column in held_in), (label_column, "label")):
        choose_column(column, table.column_names, (), role=role, owner=f"{spec} ({split})")
    labels, class_names = read_labels(table, label_column, owner=f"{spec} ({split})")
    source: SampleSource = (
        TextColumns(table, held_in, split) if kind == "text" else ImageColumn(table, held_in[0], split)
    )
    # Which columns were meant decides what a sample is: features of others must not be taken for theirs.
    chosen = hashlib.sha256(f"{fingerprint} {held_in}".encode()).hexdigest() if kind == "text" else fingerprint
    dataset = Dataset(
        name=f"{spec} ({split})",
        class_names=class_names,
        labels=labels,
        fingerprint=chosen,
        source=source,
        columns=ScalarColumns(table, excluded={*held_in, label_column}),
        numbered=is_integer(table.features[label_column]),
        kind=kind,
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
