"""Samples that two data sets share are computed once, and are the same bits whichever data set they were read from."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import Dataset, load_dataset
from tests.backbones.test_feature_reader import image_folder, read


class Counting:
    """A backbone that counts the samples it is given."""

    def __init__(self, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backbone, self.number, extract = backbone, 0, backbone.extract_inputs

        def counted(inputs: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
            def each() -> Iterator[torch.Tensor]:
                for one in inputs:
                    self.number += 1
                    yield one

            return extract(each())

        monkeypatch.setattr(backbone, "extract_inputs", counted)

    def features(self, dataset: Dataset, cache: Path | None) -> tuple[torch.Tensor, int]:
        """Return all features of a data set, and how many of them were computed."""
        before = self.number
        features, _ = read(FeatureReader(self.backbone, cache), dataset, np.arange(len(dataset)))
        return features, self.number - before


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(load_backbone("random:tiny", batch_size=4), monkeypatch)


def folder(path: Path) -> Dataset:
    return load_dataset(f"folder:{path}", "train")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """Two folders: the second has nine of the first one's twelve images, under other names, and one of its own."""
    first = image_folder(tmp_path / "first")
    for number, path in enumerate(sorted(first.rglob("*.png"))[3:]):
        target = tmp_path / "second" / f"class {number % 3}" / f"other-{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    Image.new("RGB", (20, 20), "red").save(tmp_path / "second" / "class 0" / "own.png")
    return folder(first), folder(tmp_path / "second")


def test_shared_images_are_computed_once(two: tuple[Dataset, Dataset], counting: Counting, tmp_path: Path) -> None:
    first, second = two
    cache = tmp_path / "cache"
    assert counting.features(first, cache)[1] == 12
    fresh, _ = counting.features(second, None)
    found, computed = counting.features(second, cache)
    assert computed == 1 and torch.equal(found, fresh)
    again, computed = counting.features(second, cache)
    assert computed == 0 and torch.equal(again, fresh)


def test_a_part_of_a_data_set_shares_with_the_whole(counting: Counting, tmp_path: Path) -> None:
    whole = load_dataset("builtin", "train")
    part = whole.subset(np.arange(40, 70))
    assert counting.features(part, tmp_path)[1] == 30
    more = whole.subset(np.arange(50, 90))
    fresh, _ = counting.features(more, None)
    found, computed = counting.features(more, tmp_path)
    assert computed == 20 and torch.equal(found, fresh)
