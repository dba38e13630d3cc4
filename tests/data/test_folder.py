"""Folders of images, as users have them."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedstats_app.data import DatasetError, UnreadableSampleError, load_dataset
from fedstats_app.data.contents import sample_identities
from tests.data.conftest import write_png


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_png(tmp_path / "train" / "cat" / "1.png", (1, 0, 0))
    write_png(tmp_path / "train" / "cat" / "0.PNG", (0, 0, 0))
    write_png(tmp_path / "train" / "dog" / "0.png", (2, 0, 0))
    write_png(tmp_path / "train" / "ant" / "0.png", (3, 0, 0))
    write_png(tmp_path / "test" / "dog" / "9.png", (4, 0, 0))
    return tmp_path


def test_both_splits_have_the_training_classes(root: Path) -> None:
    train, test = load_dataset(f"folder:{root}", "train"), load_dataset(f"folder:{root}", "test")
    assert test is not None and train.class_names == test.class_names == ("ant", "cat", "dog")
    np.testing.assert_array_equal(train.labels, [0, 1, 1, 2])
    np.testing.assert_array_equal(test.labels, [2])
    assert [train.sample_name(i) for i in range(4)] == ["ant/0.png", "cat/0.PNG", "cat/1.png", "dog/0.png"]
    assert [train.sample(i).getpixel((0, 0))[0] for i in range(4)] == [3, 0, 1, 2]
    assert test.sample(0).getpixel((0, 0)) == (4, 0, 0) and len({train.fingerprint, test.fingerprint}) == 2
    # Its classes alone have no test split.
    assert load_dataset(f"folder:{root / 'train'}", "train").class_names == ("ant", "cat", "dog")
    assert load_dataset(f"folder:{root / 'train'}", "test") is None


def test_fingerprint_follows_content(root: Path) -> None:
    def fingerprint() -> str:
        return load_dataset(f"folder:{root}", "train").fingerprint

    before = fingerprint()
    assert fingerprint() == before
    os.utime(root / "train" / "cat" / "1.png", ns=(1, 1))
    touched = fingerprint()
    write_png(root / "train" / "ant" / "more.png")
    assert len({before, touched, fingerprint()}) == 3


def test_files_that_are_damaged_or_gone_are_named_and_the_rest_is_read(root: Path) -> None:
    (root / "train" / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    train = load_dataset(f"folder:{root}", "train")
    (root / "train" / "dog" / "0.png").unlink()
    for index, reason in ((2, r"cat/1\.png"), (3, r"dog/0\.png.*FileNotFoundError")):
        with pytest.raises(UnreadableSampleError, match=reason):
            train.sample(index)
    assert train.sample(1).getpixel((0, 0)) == (0, 0, 0)


def test_subfolders_are_a_column(root: Path) -> None:
    assert not load_dataset(f"folder:{root}", "train").columns
    write_png(root / "train" / "cat" / "sketch" / "deep" / "5.png")
    train = load_dataset(f"folder:{root}", "train")
    np.testing.assert_array_equal(train.columns["subfolder"], ["", "", "", "sketch", ""])
    assert train.sample_name(3) == "cat/sketch/deep/5.png"


def test_other_files_are_passed_over_and_counted(root: Path) -> None:
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / "cat" / ".hidden.png").write_text("no image")
    (root / "train" / ".cache").mkdir()
    train = load_dataset(f"folder:{root}", "train")
    assert len(train) == 4 and train.notes == ("1 file does not end as images do: left out, in cat (1)",)


def test_test_without_train_is_all_that_a_server_needs(tmp_path: Path) -> None:
    write_png(tmp_path / "test" / "dog" / "0.png")
    with pytest.raises(DatasetError, match="no folder train"):
        load_dataset(f"folder:{tmp_path}", "train")
    test = load_dataset(f"folder:{tmp_path}", "test")
    assert test is not None and test.class_names == ("dog",)


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_names_of_classes_are_in_utf_8(tmp_path: Path) -> None:
    """As archives of Windows have them, in its own encoding; results are written in UTF-8."""
    write_png(tmp_path / os.fsdecode(b"caf\xe9") / "0.png")
    with pytest.raises(DatasetError, match=r"names of folders must be in UTF-8, got 'caf\\udce9'"):
        load_dataset(f"folder:{tmp_path}", "train")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nothing is at"):
        load_dataset(f"folder:{tmp_path / 'absent'}", "train")
    with pytest.raises(DatasetError, match="no folders in it"):
        load_dataset(f"folder:{tmp_path}", "train")
    (tmp_path / "cat").mkdir()
    with pytest.raises(DatasetError, match="no image"):
        load_dataset(f"folder:{tmp_path}", "train")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="is a file"):
        load_dataset(f"folder:{tmp_path / 'file'}", "train")


@pytest.mark.skipif(os.name == "nt", reason="no named pipes in folders")
@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_pipe_named_like_an_image_keeps_no_reader_waiting(tmp_path: Path, kind: str) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        write_png(tmp_path / name)
    os.mkfifo(tmp_path / "b" / "pipe.png")
    if kind == "csv":
        (tmp_path / "t.csv").write_text("image,label\na/0.png,a\na/1.png,a\nb/0.png,b\nb/pipe.png,b\n")
    data = load_dataset(f"folder:{tmp_path}" if kind == "folder" else f"csv:{tmp_path}/t.csv", "train")
    assert data is not None and len(sample_identities(data)) == 4
    with pytest.raises(UnreadableSampleError, match="no regular file"):
        data.sample(3)
