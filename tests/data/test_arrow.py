"""Data sets saved by the datasets library and by `flwr-datasets create`."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import IidPartitioner
from PIL import Image

from fedstats_app.data import load_dataset
from fedstats_app.data.clients import data_spec, own_dataset
from fedstats_app.data.data_options import DataOptions

NAMES = ["cat", "ant", "dog"]


def table(start: int, size: int) -> datasets.Dataset:
    """Make a table of images of one grey value each, the row's number; its label is that modulo three."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    values = range(start, start + size)
    rows: dict[str, Any] = {"image": [Image.new("L", (4, 4), value) for value in values]}
    return datasets.Dataset.from_dict({**rows, "label": [value % 3 for value in values]}, features=features)


@pytest.mark.parametrize("kind", ["arrow", "folder"])
def test_one_table_is_training_data(tmp_path: Path, kind: str) -> None:
    table(10, 6).save_to_disk(tmp_path / "saved")
    train = load_dataset(f"{kind}:{tmp_path / 'saved'}", "train")
    assert train.class_names == tuple(NAMES)
    np.testing.assert_array_equal(train.labels, [value % 3 for value in range(10, 16)])
    assert [train.sample(i).getpixel((0, 0))[0] for i in range(6)] == list(range(10, 16))
    assert load_dataset(f"{kind}:{tmp_path / 'saved'}", "test") is None


@pytest.mark.parametrize(("names", "test_size", "notes"), [(("train", "test"), 3, 0), (("Train", "valid"), 3, 1)])
def test_splits_are_chosen_by_their_names(tmp_path: Path, names: tuple[str, str], test_size: int, notes: int) -> None:
    datasets.DatasetDict({names[0]: table(0, 6), names[1]: table(6, 3)}).save_to_disk(tmp_path / "saved")
    spec = f"arrow:{tmp_path / 'saved'}"
    train, test = load_dataset(spec, "train"), load_dataset(spec, "test")
    assert test is not None and (len(train), len(test), len(train.notes)) == (6, test_size, notes)
    assert test.sample(0).getpixel((0, 0)) == (6, 6, 6) and train.fingerprint != test.fingerprint


def test_partitions_as_flwr_datasets_creates_them(tmp_path: Path) -> None:
    # What its command does, but for the download.
    partitioner = IidPartitioner(num_partitions=11)
    partitioner.dataset = table(0, 33)
    for number in range(11):
        partitioner.load_partition(number).save_to_disk(tmp_path / f"partition_{number}")
    train = load_dataset(f"folder:{tmp_path}", "train")
    np.testing.assert_array_equal(train.columns["partition"], np.repeat(np.arange(11), 3))
    assert [train.sample(i).getpixel((0, 0))[0] for i in (0, 32)] == [0, 32]
    assert "partition-column = 'partition'" in train.notes[0]
    # A SuperNode is given one of them.
    own = own_dataset(str(tmp_path / "partition_10"), DataOptions())
    assert (len(own), own.class_names) == (3, tuple(NAMES))
    assert data_spec(str(tmp_path / "partition_10")).startswith("arrow:")
