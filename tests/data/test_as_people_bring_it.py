"""Data as people bring them: each kind is read, or refused by a sentence that says what it looks like."""

import re
from pathlib import Path

import pytest
from PIL import Image

from fedstats_app.data import Dataset, DatasetError, UnreadableSampleError, load_dataset
from fedstats_app.data.description import doubts
from tests.data.conftest import write_png
from tests.data.test_folder_layout import tree


def labelled(folder: Path, *labels: str, header: str = "text,label", encoding: str = "utf-8") -> Dataset:
    """Load a CSV file of texts with these cells, each twice."""
    cells = "".join(f"some text{header[4]}{label}\n" for label in labels * 2)
    (folder / "labels.csv").write_text(f"{header}\n{cells}", encoding=encoding)
    return load_dataset(f"csv:{folder / 'labels.csv'}", "train")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("None", "Mild"), ("Mild", "None")),
        (("NA", "EU", "null", "nan", "N/A"), ("EU", "N/A", "NA", "nan", "null")),
        (("007", "010", "100"), ("007", "010", "100")),
        (("100", "7"), ("7", "100")),
        (("0.0", "1.0"), ("0", "1")),
        (("-1", "1"), ("-1", "1")),
        (("cat ", " cat", "dog"), ("cat", "dog")),
        (('"Pepper, bell"', '"Pepper, red"'), ("Pepper, bell", "Pepper, red")),
        (("True", "False"), ("False", "True")),
    ],
)
def test_cells_are_classes_as_written(tmp_path: Path, labels: tuple[str, ...], classes: tuple[str, ...]) -> None:
    assert labelled(tmp_path, *labels).class_names == classes


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (("a", ""), "2 of 4 rows have no 'label'; leave them out"),
        (("30.5", "31"), "'label' looks like a number to predict"),
        (tuple(map(str, range(30, 60))), ""),
        (("0", "1", "-1"), "2 of 6 labels in 'label' are below 0"),
        (("edema|mass", "edema", "mass|nodule"), "'label' has 'edema|mass': it looks like several labels a sample"),
        (('"a, b"', "a", "b"), "'label' has 'a, b': it looks like several labels a sample"),
    ],
)
def test_cells_that_are_no_classes_are_refused(tmp_path: Path, labels: tuple[str, ...], reason: str) -> None:
    if not reason:  # each number twice: half of them differ
        assert len(labelled(tmp_path, *labels).class_names) == len(labels)
        return
    with pytest.raises(DatasetError, match=re.escape(reason)):
        labelled(tmp_path, *labels)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("text,age\na,30.5\nb,31", "'age' looks like a number to predict"),
        ("text,edema,mass\na,0,1\nb,1,1", "edema, mass hold 0 and 1 only: this looks like several labels a sample"),
    ],
)
def test_a_table_without_a_label_says_what_its_columns_look_like(tmp_path: Path, columns: str, reason: str) -> None:
    (tmp_path / "labels.csv").write_text(columns)
    with pytest.raises(DatasetError, match=rf"no column has a usual name for the label.*{reason}"):
        load_dataset(f"csv:{tmp_path / 'labels.csv'}", "train")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("text,text,label\na,b,c\n")
    with pytest.raises(DatasetError, match=r"labels.csv: columns must have different names, has \['text', 'text'"):
        load_dataset(f"csv:{tmp_path / 'labels.csv'}", "train")


@pytest.mark.parametrize("header", ["text,label", "text;label", "text\tlabel", "sep=;\ntext;label"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_tables_as_spreadsheets_write_them(tmp_path: Path, header: str, encoding: str) -> None:
    separator = {"sep=;": ";"}.get(header.partition("\n")[0], header[4])
    cells = f"{separator}".join(("some text", "Füße"))
    (tmp_path / "labels.csv").write_text(f"{header}\n{cells}\n{cells}\n\n", encoding=encoding)
    data = load_dataset(f"csv:{tmp_path / 'labels.csv'}", "train")
    assert (data.class_names, data.sample(1)) == (("Füße",), "some text")


def test_suffixes_and_files_without_one(tmp_path: Path) -> None:
    for suffix in ("jfif", "jpe", "jp2", "tga", "dib"):
        Image.new("RGB", (4, 3)).save(write_png(tmp_path / "a" / "0.png").with_suffix(f".{suffix}"))
    data = load_dataset(f"folder:{tmp_path}", "train")
    assert len(data) == 6 and all(data.sample(i).size == (4, 3) for i in range(6))
    bare = tmp_path / "bare"
    for name in ("cat", "dog"):
        write_png(bare / name / "1.png").rename(bare / name / "1")
        (bare / name / "README").write_text("no image")
    data = load_dataset(f"folder:{bare}", "train")
    assert [data.sample_name(i) for i in range(len(data))] == ["cat/1", "dog/1"]


def test_masks_are_no_samples_and_no_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for part in ("images", "Masks"):
            write_png(tmp_path / "beside" / name / part / "0.png")
        for end in ("", "_mask", "_mask_1"):
            write_png(tmp_path / "named" / name / f"(0){end}.png")
    for folder, masks in (("beside", 2), ("named", 4)):
        data = load_dataset(f"folder:{tmp_path / folder}", "train")
        assert (data.class_names, len(data), data.notes) == (("cat", "dog"), 2, (f"{masks} masks of images: left out",))
    with pytest.raises(DatasetError, match=r"look like images and their masks \(Masks\), not like classes"):
        load_dataset(f"folder:{tmp_path / 'beside' / 'cat'}", "train")


def test_links_that_lead_nowhere_are_unreadable_and_circles_end(tmp_path: Path) -> None:
    tree(tmp_path, "cat", "dog")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "cat" / "up").symlink_to("..")
    for name, goal in (("gone.png", "nowhere.png"), ("self.png", "self.png")):
        (tmp_path / "dog" / name).symlink_to(goal)
    data = load_dataset(f"folder:{tmp_path}", "train")
    assert data.class_names == ("cat", "dog")
    lost = [i for i in range(len(data)) if data.sample_name(i) in ("dog/gone.png", "dog/self.png")]
    assert len(lost) == 2
    for index in lost:
        with pytest.raises(UnreadableSampleError):
            data.sample(index)


def test_classes_that_are_nearly_one_are_said(tmp_path: Path) -> None:
    assert doubts(labelled(tmp_path, "Cat", "cat", "dog"), None) == [
        "the classes 'Cat' and 'cat' differ in letter case, spaces or Unicode form only"
    ]


def test_one_image_in_two_rows_is_said(tmp_path: Path) -> None:
    write_png(tmp_path / "0.png")
    (tmp_path / "labels.csv").write_text("path,label\n0.png,a\n0.png,b\n")
    said = doubts(load_dataset(f"csv:{tmp_path / 'labels.csv'}", "train"), None)
    assert "1 image is in two classes, byte for byte: 0.png" in said


def test_the_number_of_clients_is_that_of_the_samples(tmp_path: Path) -> None:
    from fedstats_app.data.partition import partition
    from tests.data.conftest import make_dataset

    for samples, clients in ((40, 2), (160, 3), (9_000, 100)):
        labels = [i % 2 for i in range(samples)]
        assert len(partition(make_dataset(labels), partitioner="iid", num_clients=0)) == clients
