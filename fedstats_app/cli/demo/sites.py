"""Make three sites' folders of images, one folder per class, out of the sample that comes with the app.

    python -m fedstats_app.cli.demo.sites FOLDER

FOLDER/images/site-a, site-b and site-c share some classes and have some to themselves. FOLDER/server/test has images
for the server to score models on, and FOLDER/new.png is one of an ankle boot; no site has any of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fedstats_app.data import Dataset, load_dataset

# Images per class at each site. Three bags at site-c are too few to leave it (min-class-count is 5).
SITES = {
    "site-a": {"T-shirt": 60, "Trouser": 60, "Pullover": 60, "Dress": 60, "Coat": 40},
    "site-b": {"Dress": 50, "Coat": 50, "Sandal": 60, "Shirt": 60, "Sneaker": 60, "Bag": 60},
    "site-c": {"T-shirt": 40, "Shirt": 40, "Sneaker": 50, "Bag": 3, "Ankle boot": 60},
}
TEST_IMAGES = 20  # per class
NEW_IMAGE = "Ankle boot"


def folder_name(class_name: str) -> str:
    """Return a class name that can be a folder's: the sample calls one class T-shirt/top."""
    return class_name.partition("/")[0]


def make_sites(root: Path) -> None:
    """Write the folders below ``root``; no image goes to two sites."""
    train, test = load_dataset("builtin", "train"), load_dataset("builtin", "test")
    assert test is not None  # noqa: S101  # it has a test split
    taken = dict.fromkeys(map(folder_name, train.class_names), 0)
    for site, classes in SITES.items():
        for name, count in classes.items():
            _save(train, _indices(train, name)[taken[name] : taken[name] + count], root / "images" / site / name)
            taken[name] += count
    for name in taken:
        _save(test, _indices(test, name)[-TEST_IMAGES:], root / "server" / "test" / name)
    _save(test, _indices(test, NEW_IMAGE)[:1], root)
    (root / "000.png").rename(root / "new.png")


def _indices(dataset: Dataset, name: str) -> np.ndarray:
    label = [folder_name(class_name) for class_name in dataset.class_names].index(name)
    return np.flatnonzero(dataset.labels == label)


def _save(dataset: Dataset, indices: np.ndarray, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, index in enumerate(indices):
        image = dataset.sample(int(index))
        assert isinstance(image, Image.Image)  # noqa: S101  # the sample's are
        image.save(folder / f"{number:03d}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to make them; must not hold such folders yet")
    make_sites(parser.parse_args().folder)
