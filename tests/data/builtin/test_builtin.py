"""The files that ship with the app."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedstats_app.data.builtin as builtin
from fedstats_app.data import load_dataset
from tests.support.small_sample import whole_sample

FOLDER = Path(builtin.__file__).parent
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def all_of_it() -> Iterator[None]:
    with whole_sample():
        yield


@pytest.mark.parametrize(("split", "per_class"), [("train", 800), ("test", 200)])
def test_balanced_named_and_not_sorted_by_class(split: str, per_class: int) -> None:
    dataset = load_dataset("builtin", split)  # type: ignore[call-overload]
    np.testing.assert_array_equal(np.bincount(dataset.labels), [per_class] * 10)
    assert dataset.class_names[0] == "T-shirt/top" and dataset.class_names[9] == "Ankle boot"
    assert len({dataset.sample_name(i) for i in range(len(dataset))}) == 10 * per_class
    for part in np.array_split(dataset.labels, 8):  # every stretch has every class
        assert len(np.unique(part)) == 10


def test_labels_belong_to_the_images() -> None:
    """Nearest class mean on raw pixels scores about two thirds on Fashion-MNIST; with labels shifted, one in ten."""
    train, test = load_dataset("builtin", "train"), load_dataset("builtin", "test")
    assert test is not None

    def grey(dataset: object, count: int) -> np.ndarray:
        return np.stack([np.asarray(dataset.sample(i))[:, :, 0].ravel() for i in range(count)]).astype(float)  # type: ignore[attr-defined]

    x, y = grey(train, 2000), train.labels[:2000]
    means = np.stack([x[y == c].mean(axis=0) for c in range(10)])
    nearest = ((grey(test, 500)[:, None, :] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == test.labels[:500]).mean() > 0.6


def test_files_are_those_of_the_readme_and_small_enough_for_a_bundle() -> None:
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+\.json)$", (FOLDER / "README.md").read_text("utf-8"), re.M))
    listed = {name: digest for digest, name in listed.items()}
    files = {path.name: path.read_bytes() for path in FOLDER.glob("*.json")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == listed
    assert len(files) == 10 and max(map(len, files.values())) < MEGABYTE
