"""One table of paths and labels beside images, as users have them."""

from pathlib import Path

import pytest

from fedstats_app.data import Dataset, DatasetError, UnreadableSampleError, load_dataset
from fedstats_app.data.clients import own_dataset
from fedstats_app.data.data_options import DataOptions
from tests.data.conftest import write_png, write_table

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
    assert reds(dataset) == [0, 1, 2]
    assert dataset.sample_name(2) == "./images/c.png"
    assert bool(dataset.notes) is (place == "folder")


def test_parquet_and_absolute_paths(images: Path) -> None:
    values = ["images/a.png", str(images / "images" / "c.png")]
    path = write_table(images / "list.parquet", file_name=values, label=["x", "y"])
    assert reds(load_dataset(f"parquet:{path}", "train")) == [0, 2]


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


def test_texts_with_a_column_of_other_files_stay_texts(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "file,text,label", "a.txt,one,x", "b.txt,two,y")
    dataset = load_dataset(f"csv:{path}", "train")
    assert dataset.kind == "text" and dataset.sample(0) == "one"
