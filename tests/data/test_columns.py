"""Columns of tables that hold paths of images or texts, and folders of texts."""

from pathlib import Path

import pytest

from fedstats_app.data import Dataset, DatasetError, UnreadableSampleError, load_dataset
from fedstats_app.data.clients import own_dataset
from fedstats_app.data.data_options import DataOptions
from tests.data.conftest import write_png, write_table
from tests.support.sentences import text_folder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        write_png(tmp_path / "set" / "images" / f"{name}.png", (number, 0, 0))
    return tmp_path / "set"


def write_csv(folder: Path, header: str, *rows: str, name: str = "labels.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows, ""]))
    return path


def reds(dataset: Dataset) -> list[int]:
    return [dataset.sample(index).getpixel((0, 0))[0] for index in range(len(dataset))]


@pytest.mark.parametrize("header", ["path,label", "Filename,Class", "file_name,target", "Path,ClassId", "image,labels"])
@pytest.mark.parametrize("place", ["file", "folder"])
def test_usual_columns_are_found(images: Path, header: str, place: str) -> None:
    path = write_csv(images, header, "images/a.png,x", "images/b.png,y", "./images/c.png,x")
    dataset = load_dataset(f"csv:{path if place == 'file' else images}", "train")
    assert dataset.kind == "image" and dataset.class_names == ("x", "y")
    assert reds(dataset) == [0, 1, 2] and dataset.sample_name(2) == "./images/c.png"
    assert bool(dataset.notes) is (place == "folder")


def test_files_for_each_split(images: Path) -> None:
    write_csv(images, "path,label", "images/a.png,x", "images/b.png,y", name="Train.csv")
    write_csv(images, "path,label", "images/c.png,y", name="Val.csv")
    train, test = load_dataset(f"csv:{images}", "train"), load_dataset(f"csv:{images}", "test")
    assert test is not None and (reds(train), reds(test), test.class_names) == ([0, 1], [2], ("x", "y"))
    assert train.notes == ("Val is used as the test split: there is no other",)


@pytest.mark.parametrize("text", ["../outside.png", "images/../../outside.png", "images/../../../etc/x.png"])
def test_relative_paths_do_not_lead_out(images: Path, text: str) -> None:
    write_png(images.parent / "outside.png")
    path = write_csv(images, "path,label", "images/a.png,x", f"{text},y")
    with pytest.raises(UnreadableSampleError, match="leads out of the folder of the table"):
        load_dataset(f"csv:{path}", "train").sample(1)


def test_on_a_node_absolute_paths_do_not_either(images: Path) -> None:
    outside = write_png(images.parent / "outside.png")
    path = write_csv(images, "path,label", f"{images / 'images' / 'a.png'},x", f"{outside},y")
    assert reds(load_dataset(f"csv:{path}", "train")) == [0, 10]
    own = own_dataset(str(images), DataOptions())
    assert own.sample(0).getpixel((0, 0)) == (0, 0, 0)
    with pytest.raises(UnreadableSampleError, match="leads out of the folder of the table"):
        own.sample(1)


def test_paths_that_lead_nowhere_are_one_error(images: Path) -> None:
    path = write_csv(images, "path,label", "a.png,x", "b.png,y")
    with pytest.raises(DatasetError, match=r"no path in 'path' leads to an image: nothing is at .*set/a\.png"):
        load_dataset(f"csv:{path}", "train")


def test_an_image_that_changes_is_another_data_set(images: Path) -> None:
    path = write_csv(images, "path,label", "images/a.png,x", "images/b.png,y")
    before = load_dataset(f"csv:{path}", "train").fingerprint
    assert load_dataset(f"csv:{path}", "train").fingerprint == before
    write_png(images / "images" / "b.png", (9, 9, 9)).touch()
    (images / "images" / "b.png").write_bytes((images / "images" / "b.png").read_bytes() + b"\0")
    assert load_dataset(f"csv:{path}", "train").fingerprint != before


def test_several_columns_make_one_text(tmp_path: Path) -> None:
    path = write_table(tmp_path / "pairs.parquet", premise=["rain"], hypothesis=["wet"], label=[0])
    first = load_dataset(f"parquet:{path}", "train", text_column="premise, hypothesis")
    assert first.sample(0) == "rain\nwet"
    other = load_dataset(f"parquet:{path}", "train", text_column="hypothesis,premise")
    assert other.sample(0) == "wet\nrain" and other.fingerprint != first.fingerprint


def test_a_row_without_text_is_unreadable(tmp_path: Path) -> None:
    path = write_table(tmp_path / "holes.parquet", text=["a", None], label=[0, 1])
    dataset = load_dataset(f"parquet:{path}", "train")
    assert dataset.sample(0) == "a"
    with pytest.raises(UnreadableSampleError, match=r"text 'train\[1\]' cannot be read: .*no text in 'text'"):
        dataset.sample(1)


def test_folders_of_text_files(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "reviews", each=3)
    (folder / "bad" / "notes.doc").write_text("none")
    dataset = load_dataset(f"folder:{folder}", "train")
    assert dataset.kind == "text" and dataset.class_names == ("bad", "good") and len(dataset) == 6
    assert dataset.sample(4) == (folder / "good" / "01.txt").read_text()
    assert dataset.notes == ("1 file does not end as texts do: left out, in bad (1)",)


@pytest.mark.parametrize("kind", ["folder", "parquet", "csv", "csv file"])
def test_a_node_s_own_texts(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "site"
    if kind == "folder":
        text_folder(path, each=1)
    elif kind == "parquet":
        write_table(path / "train.parquet", text=["a", "b"], label=["bad", "good"])
    else:
        path.mkdir()
        (path / "train.csv").write_text("text,label\na,bad\nb,good\n")
    path = path / "train.csv" if kind == "csv file" else path
    dataset = own_dataset(str(path), DataOptions())
    assert dataset.kind == "text" and dataset.class_names == ("bad", "good") and len(dataset) == 2
