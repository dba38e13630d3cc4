"""Small images and data sets that the data tests share."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedstats_app.data.dataset import Dataset, SampleSource

# Read when flwr-datasets is first imported: tests do not report to anybody.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


# Images of one grey value, the sample's index.
PLAIN = SampleSource(lambda index: Image.new("L", (2, 2), index % 256), lambda index: f"plain/{index}")


def make_dataset(labels: np.ndarray, num_classes: int | None = None, **columns: np.ndarray) -> Dataset:
    """Build a data set in memory from labels (and columns)."""
    count = num_classes if num_classes is not None else int(np.max(labels, initial=0)) + 1
    names = tuple(f"class {c}" for c in range(count))
    return Dataset("plain (train)", names, np.asarray(labels, dtype=np.int64), "0" * 64, PLAIN, columns=columns)


def write_png(path: Path, colour: tuple[int, int, int] = (10, 20, 30)) -> Path:
    """Write an RGB image of one colour, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), colour).save(path)
    return path


def write_table(path: Path, **columns: list[Any]) -> Path:
    """Write a Parquet file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library's converted copies out of the user's home."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
