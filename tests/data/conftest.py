"""Small images and data sets that the data tests share."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data import Dataset

# Read when flwr-datasets is first imported: tests do not report to anybody.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


class PlainSource:
    """Images of one grey value, the sample's index."""

    def open(self, index: int) -> Image.Image:
        return Image.new("L", (2, 2), index % 256)

    def name(self, index: int) -> str:
        return f"plain/{index}"


@pytest.fixture
def make_dataset() -> Callable[..., Dataset]:
    """Build a data set in memory from labels (and columns)."""

    def make(labels: np.ndarray, num_classes: int | None = None, **columns: np.ndarray) -> Dataset:
        count = num_classes if num_classes is not None else int(np.max(labels, initial=0)) + 1
        return Dataset(
            name="plain (train)",
            class_names=tuple(f"class {c}" for c in range(count)),
            labels=np.asarray(labels, dtype=np.int64),
            fingerprint="0" * 64,
            source=PlainSource(),
            columns=columns,
        )

    return make


@pytest.fixture
def write_png() -> Callable[..., Path]:
    """Write an RGB image of one colour, with its folders."""

    def write(path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (4, 3)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return write


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """Find a folder of the shared data, or skip the test."""

    def find(name: str) -> Path:
        default = Path(__file__).resolve().parents[2].parent / "shared"
        folder = Path(os.environ.get("FEDSTATS_SHARED", default)) / "data" / name
        if not folder.is_dir():
            pytest.skip(f"no shared data at {folder}; FEDSTATS_SHARED names its folder")
        return folder

    return find
