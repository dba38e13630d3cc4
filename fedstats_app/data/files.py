"""Tables in files: parquet and CSV, saved by `save_to_disk` of the library `datasets`, or of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedstats_app.data.columns import Reading
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.layout import choose_splits, split_of, visible_folders
from fedstats_app.data.paths import existing_path
from fedstats_app.data.table import Suffix, read_files, table_dataset

if TYPE_CHECKING:
    import datasets

_TABLE = ("state.json", "dataset_info.json")
_SPLITS = "dataset_dict.json"
_PARTITION = re.compile(r"partition_([0-9]+)")
PARTITION_COLUMN = "partition"

_EDGE_BYTES = 1 << 20
_HUB_TIMEOUT_SECONDS = 20.0
_OFFLINE_HELP = (
    "If it was downloaded on this machine before, set HF_HUB_OFFLINE=1 in the environment; else download it where the "
    "hub can be reached, copy its parquet files here and use parquet:<absolute path of their folder>"
)


def load_files(suffix: Suffix, path: str, split: str, reading: Reading) -> Dataset | None:
    """Load parquet or CSV files of images or texts at a path that is absolute, or starts with ``~``.

    A folder, in it or in its sub-folder ``data`` the files ``train-*.parquet`` (or ``train.parquet``) and, for the test
    split if there is one, ``test-*.parquet``, in the spellings of `choose_splits`; or a single file, all of it training
    data. Likewise for CSV. Images may also be files that a column names, by paths relative to the table's folder. None
    is returned if there is no test split.

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
    tables = {part: read_files(suffix, files[part], spec) for part in dict.fromkeys(("train", split))}
    fingerprint = _fingerprint(suffix, split, files[split])
    return table_dataset(spec, split, tables, reading, fingerprint, notes=notes, folder=files[split][0].parent)


def _table_files(path: Path, suffix: Suffix, spec: str) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Return the files of the training and of the test split, and how they were chosen where that is worth a note."""
    if path.is_file():
        return {"train": [path], "test": []}, ()
    for folder in (path, path / "data"):
        files = sorted(folder.glob(f"[!.]*.{suffix}"))
        kinds = [file.stem.split("-")[0] for file in files]  # train-00000-of-00002
        chosen = choose_splits(set(kinds))
        if chosen.train is not None:
            parts = {"train": chosen.train, "test": chosen.test}
            return {
                part: [file for file, kind in zip(files, kinds, strict=True) if kind == name]
                for part, name in parts.items()
            }, chosen.notes
        if len(files) == 1 and split_of(files[0].stem)[0] in (None, "train"):
            return {"train": files, "test": []}, (f"all data are those of {files[0].name}",)
    raise DatasetError(f"{spec}: no train-*.{suffix} in {path} or {path / 'data'}; a single file may also be given")


def _fingerprint(kind: str, split: str, files: Sequence[Path]) -> str:
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


def is_arrow(folder: Path) -> bool:
    """Return whether a folder is one that `datasets.save_to_disk` or `flwr-datasets create` has made."""
    return is_table_folder(folder) or (folder / _SPLITS).is_file() or bool(_partitions(folder))


def load_arrow(path: str, split: str, reading: Reading) -> Dataset | None:
    """Load what `datasets.save_to_disk` has saved, or the partitions that `flwr-datasets create` makes.

    A `Dataset` is training data; of a `DatasetDict` the splits are chosen by their names (`choose_splits`), a single
    one of another name being training data. Of folders ``partition_0``, ``partition_1``, ... the rows follow one
    another, and the column ``partition`` holds their numbers. Nothing is unpickled. None is returned if there is no
    test split.

    Raises
    ------
    DatasetError
        If the path is relative or missing, if nothing saved is there or it cannot be read, or for what `choose_column`
        and `read_labels` refuse.
    """
    spec = f"arrow:{path}"
    root = existing_path(path, owner=spec)
    if not is_arrow(root):
        raise DatasetError(
            f"{spec}: {root} is not a folder that datasets' save_to_disk or `flwr-datasets create` has made: neither "
            f"{_SPLITS} nor {' and '.join(_TABLE)} is there, nor in folders partition_0, partition_1, ..."
        )
    tables, notes = _load(root, spec)
    if split not in tables:
        return None
    # All files of the folder, whichever split they belong to: few, and each is known by its size and its ends.
    files = sorted(file for file in root.rglob("*") if file.suffix in (".arrow", ".json"))
    fingerprint = _fingerprint("arrow", split, files)
    return table_dataset(spec, split, tables, reading, fingerprint, notes=notes, folder=root)


def is_table_folder(folder: Path) -> bool:
    """Return whether a folder holds one saved table, without splits."""
    return all((folder / name).is_file() for name in _TABLE)


def _partitions(folder: Path) -> dict[int, Path]:
    """Return the folders of partitions by their numbers, in that order."""
    names = visible_folders(folder) if folder.is_dir() else []
    numbered = {int(match[1]): folder / name for name in names if (match := _PARTITION.fullmatch(name))}
    return {number: path for number, path in sorted(numbered.items()) if is_table_folder(path)}


def _load(root: Path, spec: str) -> tuple[dict[str, datasets.Dataset], tuple[str, ...]]:
    """Return the tables of the splits that are used, and how they were chosen where that is worth a note."""
    import datasets

    datasets.disable_progress_bars()
    try:
        if partitions := _partitions(root):
            tables = {number: datasets.Dataset.load_from_disk(str(path)) for number, path in partitions.items()}
            numbers = [number for number, table in tables.items() for _ in range(len(table))]
            whole = datasets.concatenate_datasets([*tables.values()])
            if PARTITION_COLUMN not in whole.column_names:
                whole = whole.add_column(PARTITION_COLUMN, numbers)
            note = f"{len(partitions)} partitions: partition-column = 'partition' makes a client of each"
            return {"train": whole}, (note,)
        if is_table_folder(root):
            return {"train": datasets.Dataset.load_from_disk(str(root))}, ()
        saved = datasets.DatasetDict.load_from_disk(str(root))
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise DatasetError(f"{spec}: {root} cannot be read ({type(error).__name__}: {error})") from error
    chosen = choose_splits(saved)
    train = chosen.train or (next(iter(saved)) if len(saved) == 1 else None)
    if train is None:
        raise DatasetError(f"{spec}: none of the splits {sorted(saved)} of {root} is for training")
    parts = {"train": train, "test": chosen.test}
    return {part: saved[name] for part, name in parts.items() if name is not None}, chosen.notes


def load_hub(name: str, split: str, reading: Reading) -> Dataset | None:
    """Load a data set of images or texts from the Hugging Face hub through flwr-datasets, in the hub's order.

    ``NAME:SUBSET`` is one of several that the hub has under a name (there: a configuration).

    The splits are those called ``train`` and ``test`` on the hub, or those of `choose_splits`. With
    ``HF_HUB_OFFLINE=1`` in the environment only what was downloaded before is used, and nothing is asked of the
    network; without it, the hub is asked once for the data set before anything is loaded, so that a machine that cannot
    reach it hears so within seconds. None is returned if there is no test split.

    Raises
    ------
    DatasetError
        If the hub cannot be reached or has no such data set, or for what `choose_column` and `read_labels` refuse.
    """
    spec = f"hub:{name}"
    repository, _, subset = name.partition(":")
    _ask_hub(repository, spec)
    import datasets
    from flwr_datasets import FederatedDataset

    datasets.disable_progress_bars()
    federated = FederatedDataset(dataset=repository, subset=subset or None, partitioners={}, shuffle=False)
    try:
        tables = {"train": federated.load_split("train")}
        chosen = choose_splits(tables["train"].info.splits or tables)
        if split == "test":
            if chosen.test is None:
                return None
            tables["test"] = federated.load_split(chosen.test)
    except (OSError, ValueError, RuntimeError) as error:
        advice = f". {_OFFLINE_HELP}" if isinstance(error, OSError) else ""
        raise DatasetError(f"{spec}: cannot be loaded ({type(error).__name__}: {error}){advice}") from error
    # The fingerprint that the library itself names its cache files by: it changes with the revision on the hub.
    fingerprint = hashlib.sha256(f"hub {name} {split} {tables[split]._fingerprint}".encode()).hexdigest()
    return table_dataset(spec, split, tables, reading, fingerprint, notes=chosen.notes)


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
