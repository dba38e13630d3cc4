"""Parquet files as users have them, and the hub without a network."""

import io
import socket
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import csv

from fedstats_app.data import DatasetError, UnreadableSampleError, load_dataset, table
from fedstats_app.data import files as hub_module
from tests.data.conftest import write_table

pytestmark = pytest.mark.usefixtures("own_cache")


def png(value: int, mode: str = "L") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (3, 2), value).save(stream, format="PNG")
    return stream.getvalue()


def structs(*contents: bytes | None) -> list[dict[str, Any]]:
    return [{"bytes": content, "path": None} for content in contents]


def write_with_features(path: Path) -> Path:
    """Write a file as the datasets library does: typed image and label columns."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=["cat", "ant"]),
            "domain": datasets.Value("string"),
        }
    )
    rows = {"img": structs(png(5), png(6), png(7)), "fine_label": [1, 0, 1], "domain": ["photo", "sketch", "photo"]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return path


def test_typed_columns_give_class_names_in_their_own_order(tmp_path: Path) -> None:
    write_with_features(tmp_path / "data" / "train-00000-of-00001.parquet")
    train = load_dataset(f"parquet:{tmp_path}", "train")
    assert train.class_names == ("cat", "ant")
    np.testing.assert_array_equal(train.labels, [1, 0, 1])
    assert train.sample(1).getpixel((0, 0)) == (6, 6, 6) and train.sample_name(2) == "train[2]"
    assert list(train.columns) == ["domain"]
    np.testing.assert_array_equal(train.columns["domain"], ["photo", "sketch", "photo"])
    assert load_dataset(f"parquet:{tmp_path}", "test") is None


def test_plain_columns_in_several_files_and_test_split(tmp_path: Path) -> None:
    write_table(tmp_path / "train-1.parquet", image=structs(png(3)), label=["bee"], user=[8])
    write_table(tmp_path / "train-0.parquet", image=structs(png(1), png(2)), label=["dog", "ant"], user=[9, 8])
    write_table(tmp_path / "test-0.parquet", image=structs(png(4)), label=["dog"], user=[7])
    train, test = load_dataset(f"parquet:{tmp_path}", "train"), load_dataset(f"parquet:{tmp_path}", "test")
    assert test is not None and train.class_names == test.class_names == ("ant", "bee", "dog")
    np.testing.assert_array_equal(train.labels, [2, 0, 1])
    np.testing.assert_array_equal(test.labels, [2])
    assert [train.sample(i).getpixel((0, 0))[0] for i in range(3)] == [1, 2, 3]
    np.testing.assert_array_equal(train.columns["user"], [9, 8, 8])
    assert train.fingerprint != test.fingerprint
    write_table(tmp_path / "train-1.parquet", image=structs(png(4)), label=["bee"], user=[8])
    assert load_dataset(f"parquet:{tmp_path}", "train").fingerprint != train.fingerprint


def test_image_rule_holds_for_typed_columns(tmp_path: Path) -> None:
    import datasets

    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.array([[0, 257 * 100]], dtype=np.uint16)).save(stream, format="PNG", exif=exif)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": structs(stream.getvalue()), "label": [0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "train.parquet"))
    image = load_dataset(f"parquet:{tmp_path}", "train").sample(0)
    assert image.size == (1, 2)
    np.testing.assert_array_equal(np.asarray(image)[:, 0, 0], [0, 100])


def test_rows_without_a_readable_image_are_named(tmp_path: Path) -> None:
    images = [*structs(png(1), png(1)[:30], None), {"bytes": None, "path": "rel/a.png"}]
    write_table(tmp_path / "train.parquet", image=images, label=[0, 0, 0, 0])
    train = load_dataset(f"parquet:{tmp_path}", "train")
    assert train.sample(0).mode == "RGB"
    for index, reason in ((1, "train\\[1\\]"), (2, "holds no image"), (3, "relative path")):
        with pytest.raises(UnreadableSampleError, match=reason):
            train.sample(index)


def test_columns_are_detected_only_if_there_is_one_choice(tmp_path: Path) -> None:
    none = write_table(tmp_path / "none.parquet", colour=["a"], label=[0])
    with pytest.raises(DatasetError, match="no column has a usual name for the image"):
        load_dataset(f"parquet:{none}", "train")
    write_table(tmp_path / "train.parquet", image=structs(png(1)), label=[0], target=[1], photo=structs(png(2)))
    spec = f"parquet:{tmp_path}"
    with pytest.raises(DatasetError, match=r"several.*\['label', 'target'\].*label-column"):
        load_dataset(spec, "train")
    with pytest.raises(DatasetError, match=r"no label column 'labels'; the columns are \['image', 'label'"):
        load_dataset(spec, "train", label_column="labels")
    chosen = load_dataset(spec, "train", label_column="target", image_column="photo")
    assert chosen.class_names == ("1",) and chosen.sample(0).getpixel((0, 0)) == (2, 2, 2)
    assert set(chosen.columns) == {"label"}


def test_hub_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(hub_module, "_HUB_TIMEOUT_SECONDS", 0.5)
        start = time.monotonic()
        with pytest.raises(DatasetError, match=r"does not give this data set.*Timeout"):
            load_dataset("hub:some/thing", "train")
        assert time.monotonic() - start < 10


def test_hub_offline_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("the hub was asked although HF_HUB_OFFLINE is set")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    start = time.monotonic()
    with pytest.raises(DatasetError, match="hub:some/thing: cannot be loaded"):
        load_dataset("hub:some/thing", "train")
    assert time.monotonic() - start < 10


def test_hub_data_set_is_loaded_in_its_own_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A local folder in place of the download: all but the question to the hub is the real path."""
    monkeypatch.setattr(hub_module, "_ask_hub", lambda name, spec: None)
    write_table(tmp_path / "hub" / "train.parquet", image=structs(*map(png, range(20))), label=list(range(20)))
    spec = f"hub:{tmp_path / 'hub'}"
    train = load_dataset(spec, "train")
    np.testing.assert_array_equal(train.labels, range(20))
    assert train.sample(7).getpixel((0, 0)) == (7, 7, 7) and len(train.fingerprint) == 64
    assert load_dataset(spec, "train").fingerprint == train.fingerprint and load_dataset(spec, "test") is None
    write_table(tmp_path / "hub" / "test.parquet", image=structs(png(9)), label=[9])
    test = load_dataset(spec, "test")
    assert test is not None and test.class_names == train.class_names and test.labels.tolist() == [9]
    assert test.fingerprint != train.fingerprint


def test_a_subset_of_the_hub_is_named_behind_the_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hub_module, "_ask_hub", lambda name, spec: asked.append(name))
    place, configs = tmp_path / "hub", ""
    for name, labels in {"cropped": [0, 1], "full": [0, 1, 2]}.items():
        write_table(place / name / "train.parquet", image=structs(*map(png, labels)), label=labels)
        configs += f"- config_name: {name}\n  data_files: {name}/train.parquet\n"
    (place / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert [len(load_dataset(f"hub:{place}:{name}", "train")) for name in ("cropped", "full")] == [2, 3]  # type: ignore[arg-type]
    assert asked == [str(place)] * 2
    with pytest.raises(DatasetError, match=r"(?s)cannot be loaded.*cropped.*full"):
        load_dataset(f"hub:{place}", "train")


# Files that are small and would take much memory


def repeated(value: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([value]))


@pytest.mark.parametrize("nested", [False, True])
def test_a_value_that_a_file_has_once_for_many_rows_is_counted_before_it_is_read(tmp_path: Path, nested: bool) -> None:
    """A label of 4 MB in 80 rows, 320 MB in memory, in a file of a thousandth of that; so is an image's file."""
    large: Any = repeated("x" * 4_000_000, 80)
    large = pa.StructArray.from_arrays([large, pa.nulls(80, pa.string())], ["bytes", "path"]) if nested else large
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"text": pa.array(["a"] * 80), "label": large}), file, compression="zstd")
    assert file.stat().st_size < 300_000
    with pytest.raises(DatasetError, match="it must unpack to at most 256,000,000 bytes"):
        load_dataset(f"parquet:{file}", "train")


def test_few_kinds_of_values_in_many_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPACKED", 30_000)
    monkeypatch.setattr(table, "UNPACKED_EACH", 1)
    columns = {"text": pa.array(["a", "bc"] * 500), "label": repeated("x" * 10, 1000)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table.check_parquet(tmp_path / "a.parquet")
    columns["label"] = repeated("x" * 30, 1000)
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="at most 30,000 bytes"):
        table.check_parquet(tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": ["a" * n for n in range(300)]}), tmp_path / "c.parquet", use_dictionary=False)
    with pytest.raises(ValueError, match="at most"):
        table.check_parquet(tmp_path / "c.parquet")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_and_columns_are_counted_before_they_are_read(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_ROWS", 3)
    monkeypatch.setattr(table, "MOST_COLUMNS", 2)
    file = tmp_path / f"train.{suffix}"
    for columns in ({"text": ["a"] * 4, "label": ["b"] * 4}, {"text": ["a"], "label": ["b"], "more": ["c"]}):
        made = pa.table(columns)
        pq.write_table(made, file) if suffix == "parquet" else csv.write_csv(made, file)
        with pytest.raises(DatasetError, match="it must have at most 3 rows and 2 columns, has"):
            load_dataset(f"{suffix}:{file}", "train")
