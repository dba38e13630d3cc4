"""Tables of the built-in sample with several labels an image, or numbers, made of its classes."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedstats_app.data import load_dataset

# Of Fashion-MNIST's classes by number: what each of 14 attributes is true of.
ATTRIBUTES = {
    "worn on top": {0, 2, 4, 6},
    "long sleeves": {2, 4},
    "short sleeves": {0},
    "outerwear": {4},
    "knitted": {2},
    "buttons": {4, 6},
    "for legs": {1},
    "one piece": {3},
    "for feet": {5, 7, 9},
    "open shoe": {5},
    "laces": {7},
    "covers the ankle": {9},
    "carried": {8},
    "worn": {0, 1, 2, 3, 4, 5, 6, 7, 9},
}


def attributes(labels: np.ndarray, unknown: float, seed: int = 0) -> np.ndarray:
    """Return (n, 14) attributes of classes, NaN for a share of them that is unknown."""
    values = np.array([[float(label in classes) for classes in ATTRIBUTES.values()] for label in labels.tolist()])
    values[np.random.default_rng(seed).random(values.shape) < unknown] = np.nan
    return values


def write_attributes(folder: Path, number: int = 300, *, tests: int = 100, unknown: float = 0.1) -> dict[str, str]:
    """Write parquet files of images with a column of 1, 0 or -1 for each attribute; return how to read them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", number), ("test", tests)):
        dataset = load_dataset("builtin", split)
        assert dataset is not None
        chosen = np.sort(np.random.default_rng(1).permutation(len(dataset))[:count])
        values = np.nan_to_num(attributes(dataset.labels[chosen], unknown), nan=-1.0).astype(int)
        images = []
        for index in chosen.tolist():
            buffer = io.BytesIO()
            dataset.sample(index).save(buffer, format="PNG")
            images.append({"bytes": buffer.getvalue()})
        columns = {name: values[:, place].tolist() for place, name in enumerate(ATTRIBUTES)}
        sizes = {"size": (values == 1).sum(axis=1).astype(float).tolist()}
        pq.write_table(pa.table({"image": images, **columns, **sizes}), folder / f"{split}-0.parquet")
    return {"dataset": f"parquet:{folder}", "label_columns": ",".join(ATTRIBUTES)}


def write_classes(folder: Path, names: dict[str, str], number: int = 120) -> None:
    """Write a parquet file of images with two columns of classes: names, and names that two of them share."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset("builtin", "train")
    images, fine, coarse = [], [], []
    for index in range(number):
        buffer = io.BytesIO()
        dataset.sample(index).save(buffer, format="PNG")
        images.append({"bytes": buffer.getvalue()})
        name = list(names.values())[int(dataset.labels[index]) % len(names)]
        fine.append(name)
        coarse.append({"cat": "Cat", "dog": "hound"}.get(name, name))
    pq.write_table(pa.table({"image": images, "fine": fine, "coarse": coarse}), folder / "train-0.parquet")
