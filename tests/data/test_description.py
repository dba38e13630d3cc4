"""What is said of data before anything is computed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstats_app.data import DatasetError, load_dataset
from fedstats_app.data.description import check_classes, description, doubts
from tests.data.conftest import write_png
from tests.data.test_folder_layout import tree


def test_samples_classes_and_splits_are_told(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat", "train/dog", images=3)
    tree(tmp_path, "test/dog")
    spec = f"folder:{tmp_path}"
    train, test = load_dataset(spec, "train"), load_dataset(spec, "test")
    assert description(train, test) == "6 images of 2 classes (cat, dog); test split: 2 images"
    assert description(train, None) == "6 images of 2 classes (cat, dog); no test split"
    assert "1 of 2 classes have no image in the test split" in doubts(train, test)


def test_what_is_doubtful_is_told(tmp_path: Path) -> None:
    tree(tmp_path, "cat", "dog")
    (tmp_path / "owl").mkdir()
    write_png(tmp_path / "fox" / "0.png")
    assert doubts(load_dataset(f"folder:{tmp_path}", "train"), None) == [
        "no image of class 'owl' (1 of 4)",
        "a single image of class 'fox' (1 of 4)",
        "3 images are in two classes, byte for byte: dog/0.png, dog/1.png, fox/0.png",
        "images of only 3 pixels on a side, in which networks see little",
    ]


def test_test_images_that_are_training_images_are_counted(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat", "train/dog", images=2)
    tree(tmp_path, "test/cat", "test/dog", images=2)
    spec = f"folder:{tmp_path}"
    for name, number in (("train/cat/0.png", 0), ("test/dog/1.png", 0), ("test/cat/0.png", 40), ("test/cat/1.png", 41)):
        Image.new("L", (30, 30), number).save(tmp_path / name)
    Image.new("L", (30, 30), 90).save(tmp_path / "test/dog/0.png")  # as long as another, and no copy of it
    copied = [line for line in doubts(load_dataset(spec, "train"), load_dataset(spec, "test")) if " test " in line]
    assert copied == [
        "1 of 4 test images is in the training data too, byte for byte: accuracy is too high by what was learnt from it"
    ]


def test_sixteen_bits_of_which_twelve_are_used_are_told(tmp_path: Path) -> None:
    for name, most in (("cat", 4000), ("dog", 3000)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((30, 30), most, dtype=np.uint16)).save(tmp_path / name / "0.png")
    assert "go up to 4,000 only, and the range up to 65,535 is read: 16 of 256 shades are left" in " ".join(
        doubts(load_dataset(f"folder:{tmp_path}", "train"), None)
    )
    Image.fromarray(np.full((30, 30), 40_000, dtype=np.uint16)).save(tmp_path / "cat" / "0.png")
    assert not [line for line in doubts(load_dataset(f"folder:{tmp_path}", "train"), None) if "16-bit" in line]


def test_formats_that_are_not_read_are_named_with_what_converts_them(tmp_path: Path) -> None:
    tree(tmp_path, "cat", "dog")
    (tmp_path / "dog" / "a.NII").touch()
    (note,) = load_dataset(f"folder:{tmp_path}", "train").notes
    assert note.startswith("1 file does not end as images do: left out, in dog (1) (NIfTI: ") and "per slice" in note
    for path in tmp_path.glob("*/*.png"):
        path.rename(path.with_suffix(".heic"))
    with pytest.raises(DatasetError, match=r"no image in .*\(HEIC: .*heif-convert`; NIfTI: .*\)"):
        load_dataset(f"folder:{tmp_path}", "train")


def test_a_single_class_is_refused_with_what_may_be_the_classes(tmp_path: Path) -> None:
    tree(tmp_path, "archive/cat", "archive/dog")
    train = load_dataset(f"folder:{tmp_path}", "train")
    with pytest.raises(DatasetError, match=r"of one class, 'archive'.* \(cat, dog\) are the classes, name"):
        check_classes(train)
    check_classes(load_dataset(f"folder:{tmp_path / 'archive'}", "train"))
