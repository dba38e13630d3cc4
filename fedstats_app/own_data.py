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


@functools.lru_cache(maxsize=2)
def own_dataset(node: NodeConfig, config: AppConfig) -> Dataset:
    """Return the data of a node with data of its own: a folder of images per class, or parquet files."""
    path = Path(node.data_path).expanduser()
    folders = (path, path / "data")
    if path.suffix == ".parquet" or any(any(folder.glob("*.parquet")) for folder in folders):
        columns = {"image_column": config.image_column, "label_column": config.label_column}
        return load_dataset(f"parquet:{node.data_path}", "train", **columns)
    return load_dataset(f"folder:{node.data_path}", "train")


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
