"""The data of a node with data of its own, and which of its classes the server is told of. It imports no torch.

So a node answers ``query.clients`` without it: in deployment every message is a new process, and torch is most of what
such a process costs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data import Dataset, load_dataset

# Pairs of an argument of `load_dataset` and the user's choice of a column: hashable, as caches need it.
NamedColumns = tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=2)
def own_dataset(node: NodeConfig, config: AppConfig) -> Dataset:
    """Return the data of a node with data of its own, all of it training data."""
    spec = data_spec(node.data_path)
    return load_dataset(spec, "train", **(dict(named_columns(config)) if is_table(spec) else {}))


def data_spec(path: str) -> str:
    """Return the spec of data at a path: parquet or CSV files where there are any, else a folder per class."""
    place = Path(path).expanduser()
    for suffix in ("parquet", "csv"):
        folders = (place, place / "data")
        if place.suffix == f".{suffix}" or any(any(folder.glob(f"*.{suffix}")) for folder in folders):
            return f"{suffix}:{path}"
    return f"folder:{path}"


def is_table(spec: str) -> bool:
    """Return whether a data set has columns to choose from."""
    return spec.startswith(("hub:", "parquet:", "csv:"))


def named_columns(config: AppConfig) -> NamedColumns:
    """Return the columns that a run's configuration names."""
    named = {name: getattr(config, name) for name in ("image_column", "text_column", "label_column")}
    return tuple((name, column) for name, column in named.items() if column)


def hidden_classes(dataset: Dataset, floor: int) -> NDArray[np.int64]:
    """Return the classes of a node's own data, by index, with fewer samples than its floor (and so than none).

    Not even their names leave the node: a name alone would say that there is such a case.
    """
    counts = np.bincount(dataset.labels, minlength=len(dataset.class_names))
    return np.flatnonzero(counts < floor)


def listed_classes(config: AppConfig, node: NodeConfig) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Return the class names that a node with data of its own tells the server, and their numbers if they have any.

    Those under the floor are left out; without a floor all are told, also of classes without samples.
    """
    dataset = own_dataset(node, config)
    listed = np.setdiff1d(np.arange(len(dataset.class_names)), hidden_classes(dataset, node.class_floor(config)))
    names = tuple(dataset.class_names[c] for c in listed)
    return names, tuple(listed.tolist()) if dataset.numbered else None
