"""`fedstats predict` on pictures of three colours."""

import csv
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import fedstats_app
from fedstats_app.backbones import feature_reader
from fedstats_app.base.files import to_json
from fedstats_app.cli import main
from fedstats_app.data import load_dataset
from tests.cli.conftest import COLOURS, picture
from tests.support.simulation import simulate

Capture = pytest.CaptureFixture[str]


def predict_json(capsys: Capture, *words: object) -> tuple[int, dict[str, object], str]:
    code = main(["predict", *map(str, words), "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def test_json_is_what_the_classifier_says(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    code, document, errors = predict_json(capsys, run_folder, pictures, "--top", 2)
    paths = sorted(pictures.rglob("*.png"))
    expected = fedstats_app.load(run_folder).top(paths, 2)
    assert (code, errors, document["unreadable"]) == (0, "", [])
    assert document["predictions"] == [
        {"path": str(path), "top": [{"class": name, "probability": value} for name, value in ranking]}
        for path, ranking in zip(paths, expected, strict=True)
    ]
    assert document["method"] == "fedncm" and document["run_folder"] == str(run_folder)
    assert document["calibrated"] is True and document["calibrated_on"] == "30 test samples of the server"
    assert [row[0][0] for row in expected] == [path.parent.name for path in paths]


@pytest.mark.parametrize("command", ["predict", "evaluate", "inspect"])
def test_photographs_are_read_ahead_with_the_same_result(
    command: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pictures = tmp_path / "photographs"
    for name in COLOURS:
        (pictures / name).mkdir(parents=True)
        for number in range(8):
            picture(name, number).save(pictures / name / f"{number}.png")
    (pictures / "green" / "5.png").write_bytes(b"no picture")
    words = [str(run_folder), str(pictures), "--json"]
    if command == "inspect":
        words = [str(pictures), "--run", str(run_folder), "--method", "fedncm", "--csv"]
    opened, where, found = Image.open, set[int](), []
    monkeypatch.setattr(Image, "open", lambda *words: where.add(threading.get_ident()) or opened(*words))
    torch.set_num_threads(3)
    for pixels in (10**9, 1):
        monkeypatch.setattr(feature_reader, "PIXELS_FOR_A_THREAD", pixels)
        where.clear()
        found.append((main([command, *words]), capsys.readouterr()))
        assert (len(where) > 1) == (pixels == 1)
    assert found[0] == found[1] and found[0][0] == 1


def test_the_table_fits_and_shows_the_classes(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    deep = pictures / ("a folder with a long name " * 4)
    deep.mkdir()
    picture("red", 7).save(deep / "last.png")
    assert main(["predict", str(run_folder), str(pictures / "blue" / "0.png"), str(deep), "--top", "2"]) == 0
    head, first, second, third, _ = capsys.readouterr().out.splitlines()
    assert head.startswith("head fedncm; probabilities calibrated on 30 test samples of the server (temperature ")
    assert first.split()[-3:-1][0] == "blue" and second.startswith(" ")
    assert third.startswith("...") and "long name /last.png  red" in third
    assert max(map(len, (first, second, third))) <= 100
    shown = [float(line.split()[-2]) for line in (first, second)]
    assert shown[0] > shown[1] and sum(shown) <= 100.01


def test_unreadable_files_are_named_and_the_others_done(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    (pictures / "red" / "1.png").write_bytes(b"no picture")
    whole = (pictures / "red" / "2.png").read_bytes()
    (pictures / "red" / "2.png").write_bytes(whole[: len(whole) // 2])
    missing, empty = pictures / "none.png", pictures / "empty"
    empty.mkdir()
    code, document, errors = predict_json(capsys, run_folder, missing, empty, pictures / "red")
    assert code == 1 and [Path(entry["path"]).name for entry in document["predictions"]] == ["0.png", "3.png"]
    unreadable = {Path(entry["path"]).name: entry["reason"] for entry in document["unreadable"]}
    assert list(unreadable) == ["none.png", "empty", "1.png", "2.png"]
    assert unreadable["none.png"] == "no such file or folder"
    assert unreadable["empty"].startswith("no image in this folder")
    assert errors.count("fedstats predict: not read: ") == 4


def test_a_name_cannot_steer_the_terminal(run_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "\x1b[2J\n.png"
    picture("red", 1).save(path)
    assert main(["predict", str(run_folder), str(path), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.count("\n") == 2 and "?[2J?.png" in out


def test_a_head_without_calibration_is_marked(make_run: Callable[..., Path], pictures: Path, capsys: Capture) -> None:
    run = make_run(calibrated=False)
    code, document, _ = predict_json(capsys, run, pictures / "red")
    assert code == 0 and document["calibrated"] is False and document["calibrated_on"] == ""
    assert main(["predict", str(run), str(pictures / "red")]) == 0 and "UNCALIBRATED" in capsys.readouterr().out


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TEXTS = ["a good film", "a bad, bad movie", 'she said "not this"']


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_table_of_texts_is_one_prediction_a_row(suffix: str, text_run: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = [{"id": number, "sentence": text, "label": "any"} for number, text in enumerate(TEXTS)]
    table = write_table(tmp_path / f"test{suffix}", rows)
    code, document, _ = predict_json(capsys, text_run, table, "--text", "a film", "--top", 2)
    expected = fedstats_app.load(text_run).top([*TEXTS, "a film"], 2)
    assert (code, document["unreadable"]) == (0, [])
    names = [f"test{suffix}[{number}]" for number in range(3)]
    assert [entry["path"] for entry in document["predictions"]] == [*names, "a film"]
    made = [[(one["class"], one["probability"]) for one in entry["top"]] for entry in document["predictions"]]
    assert made == [[(name, pytest.approx(value, abs=1e-6)) for name, value in ranking] for ranking in expected]


def test_a_text_that_is_no_utf_8_is_named(text_run: Path, capsys: Capture) -> None:
    code, document, _ = predict_json(capsys, text_run, "--text", "a film", "--text", os.fsdecode(b"caf\xe9"))
    assert code == 1 and len(document["predictions"]) == len(document["unreadable"]) == 1


def test_the_column_is_the_runs_or_asked_for(text_run: Path, tmp_path: Path, capsys: Capture) -> None:
    rows: list[dict[str, object]] = [{"first": text, "other": "x"} for text in TEXTS]
    table = write_table(tmp_path / "test.csv", rows)
    assert main(["predict", str(text_run), str(table)]) == 2
    errors = capsys.readouterr().err
    assert "test.csv: no column has a usual name" in errors and "['first', 'other']" in errors
    assert "with image-column or text-column" in errors
    _, named, _ = predict_json(capsys, text_run, table, "--text-column", "first")
    (text_run / "config.json").write_text(to_json({"run_config": {"text-column": "first"}}))
    _, known, _ = predict_json(capsys, text_run, table)
    expected = fedstats_app.load(text_run).predict(TEXTS)
    for document in (named, known):
        assert [entry["top"][0]["class"] for entry in document["predictions"]] == expected
    write_table(table, [{"text": text} for text in TEXTS])  # the run's column is not there, but a usual one is
    code, _, _ = predict_json(capsys, text_run, table)
    assert code == 0 and main(["predict", str(text_run), str(table), "--text-column", "body"]) == 2
    assert "there is no text column 'body'; the columns are ['text']" in capsys.readouterr().err


def test_csv_has_a_line_each(
    run_folder: Path, pictures: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["predict", str(run_folder), str(pictures), "--csv", "--top", "2"]) == 0
    lines = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert lines[0] == ["sample", "class", "probability", "class_2", "probability_2"]
    paths = sorted(pictures.rglob("*.png"))
    expected = fedstats_app.load(run_folder).top(paths, 2)
    assert [line[0] for line in lines[1:]] == [str(path) for path in paths]
    for line, [(first, high), (second, low)] in zip(lines[1:], expected, strict=True):
        assert (line[1], line[3]) == (first, second) and (float(line[2]), float(line[4])) == (high, low)
    (pictures / "=1+2.png").write_bytes(paths[0].read_bytes())
    monkeypatch.chdir(pictures)
    assert main(["predict", str(run_folder), "=1+2.png", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("'=1+2.png,")  # a spreadsheet runs no formula
    assert main(["predict", str(run_folder), str(pictures), "--csv", "--json"]) == 2
    assert "--csv or --json" in capsys.readouterr().err


def test_sets_hold_the_right_class_with_a_promise(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    paths = sorted(pictures.rglob("*.png"))
    expected = fedstats_app.load(run_folder).top(paths, coverage=0.9)
    code, document, _ = predict_json(capsys, run_folder, pictures, "--coverage", 0.9)
    assert code == 0 and document["coverage"] == 0.9
    assert [[entry["class"] for entry in found["top"]] for found in document["predictions"]] == [  # type: ignore[index, attr-defined]
        [name for name, _ in ranking] for ranking in expected
    ]
    assert main(["predict", str(run_folder), str(paths[0]), "--coverage", "0.9", "--csv"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header == "sample,class,probability,set" and row.endswith(",blue")
    assert main(["predict", str(run_folder), str(paths[0]), "--coverage", "0.9"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith(
        "with the right class among those named for 90 % of samples like the 30 test samples of the server"
    )
    assert main(["predict", str(run_folder), str(paths[0]), "--coverage", "0.99"]) == 2
    assert "at most 0.9677, which 30 test samples of the server can promise, got 0.99" in capsys.readouterr().err


def test_a_blank_picture_and_noise_are_unlike_the_training_data(tmp_path: Path, capsys: Capture) -> None:
    run = simulate(tmp_path, method="fed3r")
    capsys.readouterr()
    noise = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    for number in range(4):
        sample = load_dataset("builtin", "train").sample(number)
        sample.save(tmp_path / f"{number}.png")  # type: ignore[union-attr]
    names = [str(tmp_path / f"{name}.png") for name in (*range(4), "noise")]
    assert main(["predict", str(run), *names, "--csv", "--top", "1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["unlike"] for row in rows] == ["False"] * 4 + ["True"]
    code, document, _ = predict_json(capsys, run, names[-1])
    assert code == 0 and document["predictions"][0]["unlike"] is True  # type: ignore[index]
    assert main(["predict", str(run), names[-1], "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("  unlike the training data: farther from it than 99 %")
    (run / "statistics.safetensors").unlink()  # what a user may not hand on
    assert "unlike" not in predict_json(capsys, run, names[-1])[1]["predictions"][0]  # type: ignore[index]
