"""Several labels and numbers: made of the built-in sample, and of any data set that a run can read.

    python -m research.benchmarks.targets [KEY=VALUE ...]

Without arguments it makes a table of images with 14 attributes, of which a tenth is unknown, and the number of those
that hold, and prints a row of measures for each head; with arguments, settings of a run, those of that run.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedstats_app import simulate
from fedstats_app.base.files import read_json_file
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


def attributes(labels: NDArray[np.int64], unknown: float, seed: int = 0) -> NDArray[np.float64]:
    """Return (n, 14) attributes of classes, NaN for a share of them that is unknown."""
    values = np.array([[float(label in classes) for classes in ATTRIBUTES.values()] for label in labels.tolist()])
    values[np.random.default_rng(seed).random(values.shape) < unknown] = np.nan
    return values


def write_attributes(folder: Path, number: int = 300, *, tests: int = 100, unknown: float = 0.1) -> dict[str, str]:
    """Write parquet files of images with a column of 1, 0 or -1 for each attribute; return how to read them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", number), ("test", tests)):
        dataset = load_dataset("builtin", "train" if split == "train" else "test")
        assert dataset is not None  # it has both
        chosen = np.sort(np.random.default_rng(1).permutation(len(dataset))[:count])
        values = np.nan_to_num(attributes(dataset.labels[chosen], unknown), nan=-1.0).astype(int)
        images = [{"bytes": png(dataset.sample(index))} for index in chosen.tolist()]
        columns = {name: values[:, place].tolist() for place, name in enumerate(ATTRIBUTES)}
        sizes = {"size": (values == 1).sum(axis=1).astype(float).tolist()}
        pq.write_table(pa.table({"image": images, **columns, **sizes}), folder / f"{split}-0.parquet")
    return {"dataset": f"parquet:{folder}", "label_columns": ",".join(ATTRIBUTES)}


def png(sample: object) -> bytes:
    """Return an image as a file."""
    buffer = io.BytesIO()
    sample.save(buffer, format="PNG")  # type: ignore[attr-defined]  # an image
    return buffer.getvalue()


def measured(**settings: object) -> None:
    """Run, and print a line of measures for each head."""
    run = simulate({name.replace("_", "-"): value for name, value in settings.items()})
    for name, entry in read_json_file(run / "results.json")["methods"].items():
        numbers = {key: value for key, value in entry["targets"].items() if isinstance(value, float)}
        print(name, ", ".join(f"{key} {value:.4f}" for key, value in numbers.items()), f"{entry['wire_bytes']} bytes")


def main() -> None:
    """Measure the settings given, or the made data."""
    if len(sys.argv) > 1:
        measured(**dict(word.split("=", 1) for word in sys.argv[1:]))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = write_attributes(Path(folder), 3000, tests=1000)
        measured(**made, num_clients=10)
        measured(dataset=made["dataset"], target_column="size", num_clients=10)


if __name__ == "__main__":
    main()
