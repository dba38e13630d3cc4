from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedstats_app.data import Dataset, DatasetError, load_dataset, partition

TABLE = "client,num_images\ntest,40\nb,3\na,1\nc,60\n"


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.csv"
    path.write_text(TABLE)
    return path


def loaded(path: Path, split: str = "train", classes: int = 20) -> Dataset:
    dataset = load_dataset(f"synthetic:{classes}:{path}", "test" if split == "test" else "train")
    assert dataset is not None
    return dataset


def test_clients_are_as_large_as_the_file_says(sizes: Path) -> None:
    train = loaded(sizes)
    parts = partition(train, partitioner="natural-id", num_clients=0, column="client")
    assert [len(part) for part in parts] == [1, 3, 60]  # a, b, c
    assert len(loaded(sizes, "test")) == 40 and len(train.class_names) == 20
    assert train.sample(0).size == (8, 8)


def test_a_client_is_the_same_whoever_comes_after_it(sizes: Path) -> None:
    before = loaded(sizes)
    sizes.write_text("client,num_images\nb,3\na,1\nc,60\nd,5\n")
    after = loaded(sizes)
    assert np.array_equal(before.labels, after.labels[:64])
    assert before.fingerprint != after.fingerprint
    for index in (0, 3, 63):
        assert np.array_equal(np.asarray(before.sample(index)), np.asarray(after.sample(index)))
    assert load_dataset(f"synthetic:20:{sizes}", "test") is None


def test_images_of_a_class_are_alike_and_no_two_are_equal(sizes: Path) -> None:
    test = loaded(sizes, "test", classes=2)
    images = np.stack([np.asarray(test.sample(index), dtype=float) for index in range(40)])
    means = np.stack([images[test.labels == label].mean(axis=0) for label in (0, 1)])
    nearest = [np.abs(image - means).mean(axis=(1, 2, 3)).argmin() for image in images]
    assert len(np.unique(images, axis=0)) == 40 and np.mean(nearest == test.labels) > 0.95


def test_a_client_has_few_classes_for_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("client,num_images\n" + "".join(f"{client},13\n" for client in range(300)))
    train = loaded(path, classes=1203)
    parts = partition(train, partitioner="natural-id", num_clients=0, column="client")
    rows = np.mean([len(np.unique(train.labels[part])) for part in parts])
    assert 9.5 < rows < 12.0


@pytest.mark.parametrize(
    ("spec", "table", "message"),
    [
        ("synthetic:1:{}", TABLE, "2 to 1,000,000 classes C, got '1'"),
        ("synthetic:x:{}", TABLE, "2 to 1,000,000 classes C, got 'x'"),
        ("synthetic:20:{}.no", TABLE, "there is no file"),
        ("synthetic:20:relative.csv", TABLE, "must be absolute"),
        ("synthetic:20:{}", "user,n\na,1\n", "columns client,num_images, got"),
        ("synthetic:20:{}", "client,num_images\na,0\n", "line 2 .* got 'a', '0'"),
        ("synthetic:20:{}", "client,num_images\na,2\na,3\n", "line 3 must have a client of its own"),
        ("synthetic:20:{}", "client,num_images\ntest,2\n", "at least one client, got none"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, spec: str, table: str, message: str) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text(table)
    with pytest.raises(DatasetError, match=message):
        load_dataset(spec.format(path), "train")
