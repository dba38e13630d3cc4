"""Texts in tables and folders."""

from pathlib import Path

import numpy as np
import pytest

from fedstats_app.data import DatasetError, UnreadableSampleError, load_dataset
from fedstats_app.data.clients import own_dataset
from fedstats_app.data.data_options import DataOptions
from tests.data.conftest import write_table
from tests.support.sentences import text_folder

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_column_of_texts_is_found_by_its_name(tmp_path: Path) -> None:
    write_table(tmp_path / "train.parquet", sentence=["good", "bad"], label=["yes", "no"], author=["a", "b"])
    write_table(tmp_path / "test.parquet", sentence=["fair"], label=["no"], author=["c"])
    train, test = load_dataset(f"parquet:{tmp_path}", "train"), load_dataset(f"parquet:{tmp_path}", "test")
    assert test is not None
    assert (train.kind, test.kind) == ("text", "text") and train.class_names == ("no", "yes")
    assert [train.sample(0), train.sample(1), test.sample(0)] == ["good", "bad", "fair"]
    assert train.sample_name(1) == "train[1]" and list(train.columns) == ["author"]
    subset = train.subset(np.array([1]))
    assert subset.kind == "text" and subset.sample(0) == "bad"


def test_several_columns_make_one_text(tmp_path: Path) -> None:
    path = write_table(tmp_path / "pairs.parquet", premise=["rain"], hypothesis=["wet"], label=[0])
    first = load_dataset(f"parquet:{path}", "train", text_column="premise, hypothesis")
    assert first.sample(0) == "rain\nwet"
    other = load_dataset(f"parquet:{path}", "train", text_column="hypothesis,premise")
    assert other.sample(0) == "wet\nrain" and other.fingerprint != first.fingerprint


def test_csv_files_are_tables_too(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text,label\n"good, really",pos\nbad,neg\n')
    (tmp_path / "test.csv").write_text("text,label\nso so,neg\n")
    train, test = load_dataset(f"csv:{tmp_path}", "train"), load_dataset(f"csv:{tmp_path}", "test")
    assert train.sample(0) == "good, really" and train.class_names == ("neg", "pos") and not train.numbered
    assert test is not None and test.sample(0) == "so so" and test.labels.tolist() == [0]
    alone = load_dataset(f"csv:{tmp_path / 'train.csv'}", "train")
    assert len(alone) == 2 and alone.fingerprint == train.fingerprint


def test_images_come_before_texts_unless_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "both.parquet", image=[b"x"], text=["a"], label=[0])
    assert load_dataset(f"parquet:{path}", "train").kind == "image"
    assert load_dataset(f"parquet:{path}", "train", text_column="text").kind == "text"
    with pytest.raises(DatasetError, match="name image-column or text-column, got 'image' and 'text'"):
        load_dataset(f"parquet:{path}", "train", image_column="image", text_column="text")


def test_columns_that_do_not_tell_are_an_error(tmp_path: Path) -> None:
    two = write_table(tmp_path / "two.parquet", text=["a"], title=["b"], label=[0])
    with pytest.raises(DatasetError, match=r"several columns may be the text: \['text', 'title'\].*text-column"):
        load_dataset(f"parquet:{two}", "train")
    with pytest.raises(DatasetError, match="there is no text column 'body'"):
        load_dataset(f"parquet:{two}", "train", text_column="body")
    numbers = write_table(tmp_path / "numbers.parquet", text=[1.5], label=[0])
    with pytest.raises(DatasetError, match="no column has a usual name for the image, nor one of strings for the text"):
        load_dataset(f"parquet:{numbers}", "train")


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
    assert dataset.notes == ("1 files do not end as texts do: left out, in bad (1)",)


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
