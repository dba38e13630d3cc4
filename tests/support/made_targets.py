"""Tables of the built-in sample with several labels an image, or numbers, made of its classes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedstats_app.data import load_dataset
from research.benchmarks.targets import ATTRIBUTES as ATTRIBUTES
from research.benchmarks.targets import png
from research.benchmarks.targets import write_attributes as write_attributes


def write_classes(folder: Path, names: dict[str, str], number: int = 120) -> None:
    """Write a parquet file of images with two columns of classes: names, and names that two of them share."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset, values = load_dataset("builtin", "train"), list(names.values())
    fine = [values[label % len(values)] for label in dataset.labels[:number].tolist()]
    coarse = [{"cat": "Cat", "dog": "hound"}.get(name, name) for name in fine]
    images = [{"bytes": png(dataset.sample(index))} for index in range(number)]
    pq.write_table(pa.table({"image": images, "fine": fine, "coarse": coarse}), folder / "train-0.parquet")
