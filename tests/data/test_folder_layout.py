"""Folders as they are downloaded: splits, domains and classes told apart, or asked about."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.data import Dataset, DatasetError, load_dataset
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.data.layout import split_of
from fedstats_app.settings.app_config import AppConfig
from tests.data.conftest import write_png


def tree(root: Path, *folders: str, images: int = 2) -> Path:
    """Make folders with some images each."""
    for folder in folders:
        for number in range(images):
            write_png(root / folder / f"{number}.png")
    return root


def both(root: Path, **reading: str) -> tuple[Dataset, Dataset | None]:
    return load_dataset(f"folder:{root}", "train", **reading), load_dataset(f"folder:{root}", "test", **reading)


SPELLINGS = [("train", "test"), ("Training", "Testing"), ("train_set", "test_set"), ("Train Images", "Test Images")]
SPELLINGS += [("trainset", "testset"), ("seg_train", "seg_test"), ("TrainData", "TestData"), ("train", "val")]
SPELLINGS += [("train", "Valid"), ("training", "validation")]


@pytest.mark.parametrize(
    ("train", "test", "wrapper"),
    [*((*names, "") for names in SPELLINGS), ("train", "val", "archive/"), ("train", "val", "archive/data/")],
)
def test_splits_are_known_by_their_names(tmp_path: Path, train: str, test: str, wrapper: str) -> None:
    folders = [f"{wrapper}{train}/{name}" for name in ("cat", "dog")] + [f"{wrapper}{test}/dog"]
    found, held = both(tree(tmp_path, *folders))
    assert held is not None and found.class_names == held.class_names == ("cat", "dog")
    assert (len(found), len(held)) == (4, 2)
    validation = test.lower().startswith("val")
    assert any("is used as the test split" in note for note in found.notes) is validation
    assert any("archive" in note for note in found.notes) is bool(wrapper)


def test_a_folder_of_its_own_name_is_opened(tmp_path: Path) -> None:
    found, held = both(tree(tmp_path, "a_train/a_train/x", "a_train/a_train/y", "a_test/a_test/x"))
    assert held is not None and (found.class_names, len(found), len(held)) == (("x", "y"), 4, 2)


def test_a_test_folder_without_labels_is_left_out_and_said(tmp_path: Path) -> None:
    found, held = both(tree(tmp_path, "train/cat", "train/dog", "test"))
    assert held is None and found.notes == ("test has no class folders in it: left out",)


@pytest.mark.parametrize(
    "folders",
    [("train", "bus", "tram"), ("valid", "invalid"), ("bullet train/a", "bullet train/b", "car"), ("test", "control")],
)
def test_classes_of_such_names_stay_classes(tmp_path: Path, folders: tuple[str, ...]) -> None:
    found, held = both(tree(tmp_path, *folders))
    assert held is None and found.class_names == tuple(sorted({folder.split("/")[0] for folder in folders}))


@pytest.mark.parametrize(
    ("folders", "question"),
    [
        (("train/a", "Training/a", "test/a"), "Training, train may all be the train split"),
        (("train/a", "test/a", "testing/a"), "test, testing may all be the test split"),
        (("cat", "dog", "test/cat"), "test looks like a split beside cat, dog"),
        (("cat/train", "cat/test", "dog/train", "dog/test"), "the split must come first: .*/test/cat"),
        (("photo/cat", "photo/dog", "sketch/cat", "sketch/dog"), "folder-levels = 'domain/class'"),
        (("train/photo/cat", "train/photo/dog", "train/sketch/cat", "train/sketch/dog"), "partition-column = 'domain'"),
        (("train", "test"), "no folders in it; one per class is needed"),
    ],
)
def test_what_cannot_be_told_is_asked(tmp_path: Path, folders: tuple[str, ...], question: str) -> None:
    with pytest.raises(DatasetError, match=question):
        load_dataset(f"folder:{tree(tmp_path, *folders)}", "train")


def test_domains_are_a_column_where_the_user_says_so(tmp_path: Path) -> None:
    tree(tmp_path, "photo/dog", "photo/cat", "sketch/dog", "sketch/owl")
    write_png(tmp_path / "sketch" / "owl" / "deep" / "er.png")
    found, held = both(tmp_path, folder_levels="domain/class")
    assert held is None and found.class_names == ("cat", "dog", "owl")
    by_class = {name: int(np.sum(found.labels == label)) for label, name in enumerate(found.class_names)}
    assert by_class == {"cat": 2, "dog": 4, "owl": 3}
    for index in range(len(found)):
        domain, name, *_ = found.sample_name(index).split("/")
        assert (found.columns["domain"][index], found.class_names[found.labels[index]]) == (domain, name)


def test_a_split_by_the_folders_below_says_which_the_classes_are(tmp_path: Path) -> None:
    tree(tmp_path, "dog/photo", "dog/sketch", "cat/photo", "cat/sketch")
    by_column = {"partitioner": "natural-id", "partition_column": "subfolder", "num_clients": 0}
    config = AppConfig.of(dataset=f"folder:{tmp_path}", **by_column)
    found = training_set(config.data)
    assert found.class_names == ("cat", "dog") and set(found.columns["subfolder"]) == {"photo", "sketch"}
    assert [len(part) for part in partitions(config.data, config.partition, 0)] == [4, 4]


def test_what_systems_leave_behind_is_no_class(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat", "train/dog", "__MACOSX/train/cat", "train/__MACOSX/cat", "train/@eaDir/cat", ".git/x")
    for path in ("train/.DS_Store", "train/cat/.DS_Store", "train/cat/Thumbs.db", "train/dog/desktop.ini"):
        (tmp_path / path).write_bytes(b"\0")
    write_png(tmp_path / "train" / "cat" / "._0.png")
    found, _ = both(tmp_path)
    assert (found.class_names, len(found), found.notes) == (("cat", "dog"), 4, ())


WORDS: Mapping[str, str] = {"train": "train", "Training": "train", "VAL": "validation", "dev": "validation"}


@given(st.sampled_from(sorted(WORDS)), st.sampled_from(["", "_", "-", " "]), st.sampled_from(["", "set", "data"]))
def test_a_split_is_known_whatever_the_spelling(word: str, joint: str, filler: str) -> None:
    assert split_of(f"{word}{joint}{filler}") == (WORDS[word], "")
