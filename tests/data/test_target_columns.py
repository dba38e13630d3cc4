"""Tables whose rows have several labels, or numbers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedstats_app.data import DatasetError, load_dataset

NAN = np.nan


def table(folder: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table({"text": ["a", "b", "c", "d"], **columns}), folder / "train-0.parquet")
    return f"parquet:{folder}"


def read(spec: str, **reading: str) -> tuple[tuple[str, ...], list[list[float]]]:
    dataset = load_dataset(spec, "train", **reading)
    assert dataset.targets is not None and not dataset.labels.any()
    return dataset.class_names, dataset.targets.values.tolist()


@pytest.mark.parametrize(
    ("cells", "names", "values"),
    [
        ([["b", "a"], ["a"], [], None], ("a", "b"), [[1, 1], [1, 0], [0, 0], [NAN, NAN]]),
        ([[10, 2], [2], [10], [2]], ("2", "10"), [[1, 1], [1, 0], [0, 1], [1, 0]]),
        ([[10, None], [2], [None], [2]], ("2", "10"), [[0, 1], [1, 0], [0, 0], [1, 0]]),
        ([["a", None], ["", "b"], [" "], []], ("a", "b"), [[1, 0], [0, 1], [0, 0], [0, 0]]),
    ],
)
def test_a_column_of_lists_has_several_labels(
    tmp_path: Path, cells: list[object], names: tuple[str, ...], values: list[list[float]]
) -> None:
    found = read(table(tmp_path, label=cells))
    assert found[0] == names
    np.testing.assert_array_equal(found[1], values)


@pytest.mark.parametrize(("missing", "empty"), [("unknown", NAN), ("negative", 0.0)])
def test_labels_in_one_text_are_separated_and_an_option_says_what_nothing_means(
    tmp_path: Path, missing: str, empty: float
) -> None:
    spec = table(tmp_path, label=["edema | mass", "mass", "", None])
    names, values = read(spec, label_separator="|", missing_labels=missing)
    assert names == ("edema", "mass")
    np.testing.assert_array_equal(values, [[1, 1], [0, 1], [empty, empty], [empty, empty]])


@pytest.mark.parametrize(("missing", "empty"), [("unknown", NAN), ("negative", 0.0)])
def test_columns_of_0_and_1_are_labels_and_less_is_unknown_or_not(tmp_path: Path, missing: str, empty: float) -> None:
    (tmp_path / "train.csv").write_text("text,edema,mass\na,1,0\nb,-1,1.0\nc,,True\nd,0,-1.0\n")
    names, values = read(f"csv:{tmp_path / 'train.csv'}", label_columns="edema, mass", missing_labels=missing)
    assert names == ("edema", "mass")
    np.testing.assert_array_equal(values, [[1, 0], [empty, 1], [empty, 1], [0, empty]])


def test_numbers_are_read_with_decimal_commas_and_gaps(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text;age;weight\na;"1,5";-3\nb;;7\nc;20;1\nd;0;2\n')
    names, values = read(f"csv:{tmp_path / 'train.csv'}", target_column="age,weight")
    assert names == ("age", "weight")
    np.testing.assert_array_equal(values, [[1.5, -3], [NAN, 7], [20, 1], [0, 2]])


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        ({"label_columns": "edema"}, "a cell of 'edema' must hold 0, 1, -1 or nothing, got '2' in 1 of them"),
        ({"target_column": "name"}, "a cell of 'name' must hold a number, or nothing, got 'x' in 4 of them"),
        ({"label_columns": "none"}, "there is no label column 'none'"),
        ({"label_columns": "edema", "target_column": "name"}, "name label-columns or target-column, not both"),
    ],
)
def test_what_is_no_target_is_refused(tmp_path: Path, reading: dict[str, str], reason: str) -> None:
    spec = table(tmp_path, edema=["0", "1", "2", ""], name=["x", "x", "x", "x"])
    with pytest.raises(DatasetError, match=reason):
        load_dataset(spec, "train", **reading)


def test_a_test_split_has_the_labels_of_the_training_split(tmp_path: Path) -> None:
    spec = table(tmp_path, label=["a|b", "b", "c", "a"])
    pq.write_table(pa.table({"text": ["a", "b"], "label": ["c", "a"]}), tmp_path / "test-0.parquet")
    test = load_dataset(spec, "test", label_separator="|")
    assert test is not None and test.targets is not None and test.class_names == ("a", "b", "c")
    assert test.targets.values.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_samples_are_spread_over_clients_by_their_rarest_label(tmp_path: Path) -> None:
    dataset = load_dataset(table(tmp_path, label=[["a", "b"], ["a"], [], ["a"]]), "train")
    assert dataset.class_counts.tolist() == [3, 1] and dataset.grouped().labels.tolist() == [1, 0, 2, 0]
    assert dataset.subset(np.array([2, 0])).targets.values.tolist() == [[0, 0], [1, 1]]  # type: ignore[union-attr]
