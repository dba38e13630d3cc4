"""Commands on runs whose samples have several labels, or numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import fedstats_app
from fedstats_app.cli import main
from fedstats_app.report.statistics_file import load_statistics
from tests.support.made_targets import ATTRIBUTES, write_attributes
from tests.support.simulation import read_json, simulate

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_attributes(folder / "made")
    return folder / "made"


@pytest.fixture(scope="module")
def labels(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = {"dataset": f"parquet:{data}", "label_columns": ",".join(ATTRIBUTES)}
    return simulate(tmp_path_factory.mktemp("labels"), **made, num_clients=3, save_statistics="clients")


@pytest.fixture(scope="module")
def numbers(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = {"dataset": f"parquet:{data}", "target_column": "size"}
    return simulate(tmp_path_factory.mktemp("numbers"), **made, num_clients=3)


def printed(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_labels_above_their_threshold_are_predicted(labels: Path, data: Path, capsys: Capture) -> None:
    test = str(data / "test-0.parquet")
    found = json.loads(printed(capsys, "predict", str(labels), test, "--json"))
    assert found["targets"] == "labels" and len(found["predictions"]) == 100
    for entry in found["predictions"]:
        assert entry["labels"] == [name for name, value in entry["probabilities"].items() if value >= 0.5]
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "predict", str(labels), test, "--csv"))))
    assert [row["labels"] for row in rows] == ["|".join(entry["labels"]) for entry in found["predictions"]]
    assert "%" in printed(capsys, "predict", str(labels), test)


def test_labels_are_inspected_of_heads_of_one_class_only(labels: Path, data: Path, capsys: Capture) -> None:
    assert main(["inspect", str(data), "--run", str(labels)]) == 2
    assert "head fed3r gives labels to a sample, not one class" in capsys.readouterr().err


def test_numbers_are_predicted_with_an_interval(numbers: Path, data: Path, capsys: Capture) -> None:
    test = str(data / "test-0.parquet")
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "predict", str(numbers), test, "--csv"))))
    widths = [float(row["size to"]) - float(row["size from"]) for row in rows]
    assert min(widths) == pytest.approx(max(widths)) and widths[0] > 0
    assert "size" in printed(capsys, "predict", str(numbers), test)
    with pytest.raises(ValueError, match="predicts numbers, which are its scores"):
        fedstats_app.load(numbers).predict([])


def test_a_number_that_was_dropped_is_not_predicted(data: Path, tmp_path: Path, capsys: Capture) -> None:
    both = {"dataset": f"parquet:{data}", "target_column": f"size,{next(iter(ATTRIBUTES))}"}
    run = simulate(tmp_path, **both, num_clients=3, method="fed3r")
    printed(capsys, "edit", str(run), "--drop", "size", "--output-dir", str(tmp_path / "new"))
    (left,) = (tmp_path / "new").iterdir()
    words = ["predict", str(left), str(data / "test-0.parquet"), "--method", "fed3r"]
    found = json.loads(printed(capsys, *words, "--json"))
    assert found["predictions"][0]["numbers"].keys() == {next(iter(ATTRIBUTES))}
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *words, "--csv"))))
    whole = printed(capsys, "predict", str(run), *words[2:], "--csv")
    assert [rows[0][name] for name in list(rows[0])[1:]] == whole.splitlines()[1].split(",")[4:]
    onnxruntime = pytest.importorskip("onnxruntime")
    printed(capsys, "export", str(left), "--onnx", str(tmp_path / "model.onnx"), "--method", "fed3r")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    [made] = session.run(None, {"images": np.full((1, 28, 28, 3), 99, dtype=np.uint8)})
    assert np.isnan(made[0, 0]) and np.isfinite(made[0, 1])


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_a_set_of_classes_is_refused(kind: str, data: Path, capsys: Capture, request: pytest.FixtureRequest) -> None:
    run = str(request.getfixturevalue(kind))
    assert main(["predict", run, str(data / "test-0.parquet"), "--coverage", "0.9"]) == 2
    assert f"--coverage is for one class a sample, head fed3r gives {kind}" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "method"), [("labels", "predict"), ("numbers", "scores")])
def test_a_card_and_its_command_say_what_the_head_gives(
    kind: str, method: str, tmp_path: Path, capsys: Capture, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(kind)
    said = printed(capsys, "export", str(run), "--hub", str(tmp_path / "hub"))
    assert "UNCALIBRATED" not in said
    card = (tmp_path / "hub" / "README.md").read_text()
    assert f"{kind}, from federated" in card and f"\n{kind.capitalize()}: " in card and f").{method}(" in card
    assert "one of the classes" not in card


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_an_evaluation_gives_the_measures_of_the_run(
    kind: str, data: Path, capsys: Capture, request: pytest.FixtureRequest
) -> None:
    run: Path = request.getfixturevalue(kind)
    found = json.loads(printed(capsys, "evaluate", str(run), str(data), "--json"))
    results = read_json(run, "results.json")
    expected = results["methods"][results["advice"]["method"]]["targets"]
    assert found["per_target_examples"] == expected["per_target_examples"]
    name = "mean_average_precision" if kind == "labels" else "mean_r2"
    assert found[name] == pytest.approx(expected[name], abs=2e-3)
    assert "interval" in printed(capsys, "evaluate", str(run), str(data)) or kind == "labels"


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_the_page_says_what_the_head_does(kind: str, request: pytest.FixtureRequest) -> None:
    page = (request.getfixturevalue(kind) / "report.html").read_text()
    assert ("mean average precision" if kind == "labels" else "R2") in page
    assert "Nothing has been evaluated" not in page


def test_a_site_can_be_taken_out_of_several_labels(labels: Path, tmp_path: Path, capsys: Capture) -> None:
    printed(capsys, "remove", str(labels), "--client", "1", "--output-dir", str(tmp_path))
    (left,) = tmp_path.iterdir()
    whole, rest = (load_statistics(run).total.summed() for run in (labels, left))
    assert whole.targets is not None and rest.targets is not None
    assert bool((rest.targets.known <= whole.targets.known).all()) and rest.num_examples < whole.num_examples


def test_an_onnx_file_gives_the_same_sigmoids(labels: Path, tmp_path: Path, capsys: Capture) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    printed(capsys, "export", str(labels), "--onnx", str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    image = np.full((1, 28, 28, 3), 99, dtype=np.uint8)
    from PIL import Image

    [made] = session.run(None, {"images": image})
    expected = fedstats_app.load(labels).probabilities(Image.fromarray(image[0]))
    np.testing.assert_allclose(made, expected, atol=1e-4)
