"""`fedstats predict` on pictures of three colours."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fedstats_app
from fedstats_app.cli import main
from tests.cli.conftest import picture

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


def test_files_that_cannot_be_read_are_named_and_the_others_done(
    run_folder: Path, pictures: Path, capsys: Capture
) -> None:
    (pictures / "red" / "1.png").write_bytes(b"no picture")
    whole = (pictures / "red" / "2.png").read_bytes()
    (pictures / "red" / "2.png").write_bytes(whole[: len(whole) // 2])
    missing, empty = pictures / "none.png", pictures / "empty"
    empty.mkdir()
    code, document, errors = predict_json(capsys, run_folder, missing, empty, pictures / "red")
    assert code == 1
    assert [Path(entry["path"]).name for entry in document["predictions"]] == ["0.png", "3.png"]
    unreadable = {Path(entry["path"]).name: entry["reason"] for entry in document["unreadable"]}
    assert list(unreadable) == ["none.png", "empty", "1.png", "2.png"]
    assert unreadable["none.png"] == "no such file or folder"
    assert unreadable["empty"].startswith("no image in this folder")
    assert errors.count("fedstats predict: not read: ") == 4


def test_only_files_named_are_taken_whatever_their_suffix(run_folder: Path, pictures: Path, capsys: Capture) -> None:
    odd = pictures / "picture.data"
    picture("green", 3).save(odd, format="PNG")
    (pictures / "notes.txt").write_text("no picture")
    (pictures / ".hidden.png").write_bytes(b"no picture")
    code, document, _ = predict_json(capsys, run_folder, odd)
    assert code == 0 and document["predictions"][0]["top"][0]["class"] == "green"
    code, document, _ = predict_json(capsys, run_folder, pictures)
    assert code == 0 and len(document["predictions"]) == 12


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
    assert main(["predict", str(run), str(pictures / "red")]) == 0
    assert "UNCALIBRATED" in capsys.readouterr().out


def test_many_images_go_through_in_pieces(
    run_folder: Path, pictures: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = predict_json(capsys, run_folder, pictures)
    monkeypatch.setattr("fedstats_app.cli.predict.CHUNK", 5)
    _, pieces, _ = predict_json(capsys, run_folder, pictures, "--batch-size", 8)
    assert pieces == whole


def test_the_mode_of_the_image_does_not_matter(run_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    image = picture("blue", 2)
    paths = [tmp_path / f"{mode}.png" for mode in ("RGB", "RGBA", "P")]
    for path in paths:
        image.convert(path.stem).save(path)
    code, document, _ = predict_json(capsys, run_folder, *paths)
    assert code == 0
    assert [entry["top"][0]["class"] for entry in document["predictions"]] == ["blue"] * 3
    assert document["predictions"][0]["top"] == document["predictions"][1]["top"]
