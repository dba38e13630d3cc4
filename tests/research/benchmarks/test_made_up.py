from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedstats_app.data import load_dataset, partition
from research.benchmarks.made_up import labels_of, main

TABLE = "client,num_images\ntest,40\nb,3\na,1\nc,60\n"


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.csv"
    path.write_text(TABLE)
    return path


def test_clients_are_as_large_as_the_file_says(sizes: Path, tmp_path: Path) -> None:
    main(["--sizes", str(sizes), "--classes", "20", str(tmp_path / "made")])
    train = load_dataset(f"parquet:{tmp_path / 'made'}", "train")
    test = load_dataset(f"parquet:{tmp_path / 'made'}", "test")
    assert test is not None and len(test) == 40
    parts = partition(train, partitioner="natural-id", num_clients=0, column="client")
    assert [len(part) for part in parts] == [1, 3, 60]  # a, b, c
    assert len(train.class_names) == 20 and train.sample(0).size == (8, 8)
    np.testing.assert_array_equal(train.labels, np.concatenate(labels_of(sizes, 20)))
    images = {train.sample(index).tobytes() for index in range(64)}
    assert len(images) == 64
