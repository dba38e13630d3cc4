"""`fedstats inspect` on pictures of three colours, two of which lie in another colour's folder."""

import csv
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import fedstats_app
from fedstats_app.cli import main
from tests.cli.conftest import picture

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be where a page may be written."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mixed(pictures: Path) -> Path:
    picture("red", 50).save(pictures / "blue" / "wrong.png")
    shutil.copy(pictures / "green" / "1.png", pictures / "blue" / "twin.png")
    return pictures


def inspect(run_folder: Path, data: Path, *words: str) -> int:
    return main(["inspect", str(data), "--run", str(run_folder), "--method", "fedncm", *words])


def test_what_lies_in_the_wrong_folder_comes_first_with_what_the_head_says(
    run_folder: Path, mixed: Path, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.html"
    assert inspect(run_folder, mixed, "--out", str(page), "--top", "3") == 0
    out = capsys.readouterr().out
    assert out.startswith("To 2 of 14 images (14.29 %) the head gives another class. Nothing was sent.")
    found = [line.split()[:3] for line in out.splitlines()[3:5]]
    assert sorted(found) == [["blue/twin.png", "blue", "green"], ["blue/wrong.png", "blue", "red"]]
    assert "the same in two classes:\nblue/twin.png (blue) = green/1.png (green)" in out
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 3 and "blue/wrong.png" in text and "14.29\u00a0%" in text
    # The page asks for nothing.
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)


def test_the_table_has_every_sample_by_rising_margin(run_folder: Path, mixed: Path, capsys: Capture) -> None:
    assert inspect(run_folder, mixed, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    margins = [float(row["margin"]) for row in rows]
    assert len(rows) == 14 and margins == sorted(margins) and margins[1] < 0 < margins[2]
    said = fedstats_app.load(run_folder).predict([mixed / row["sample"] for row in rows])
    assert [row["head"] for row in rows] == said and not Path("inspect.html").exists()


def test_a_table_is_read_by_the_columns_of_the_run(
    run_folder: Path, mixed: Path, tmp_path: Path, capsys: Capture
) -> None:
    rows = [f"{path},{path.parent.name},x" for path in sorted(path.relative_to(mixed) for path in mixed.rglob("*.png"))]
    (mixed / "train.csv").write_text("\n".join(["scan,finding,label", *rows]))
    settings = {"image-column": "scan", "label-column": "finding"}
    (run_folder / "config.json").write_text(json.dumps({"run_config": settings}))
    assert inspect(run_folder, mixed / "train.csv", "--out", str(tmp_path / "page.html")) == 0
    assert capsys.readouterr().out.startswith("To 2 of 14 images")


def test_texts_are_shown_by_their_beginning(text_run: Path, tmp_path: Path, capsys: Capture) -> None:
    for name, text in {"good/0.txt": "a good film", "bad/0.txt": "<b>a bad movie", "bad/1.txt": "a good film"}.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(text)
    assert inspect(text_run, tmp_path / "texts", "--out", str(tmp_path / "page.html")) == 0
    assert "bad/1.txt (bad) = good/0.txt (good)" in capsys.readouterr().out
    assert "<p>&lt;b&gt;a bad movie</p>" in (tmp_path / "page.html").read_text()


def test_another_head_or_class_or_kind_is_refused(
    run_folder: Path, text_run: Path, pictures: Path, capsys: Capture
) -> None:
    assert main(["inspect", str(pictures), "--run", str(run_folder)]) == 2
    assert "no head of method 'fed3r'" in capsys.readouterr().err and inspect(text_run, pictures) == 2
    assert "head fedncm classifies texts, DATA has images" in capsys.readouterr().err
    (pictures / "green").rename(pictures / "yellow")
    pictures.rename(pictures.with_name("others"))  # a process reads a folder once
    assert inspect(run_folder, pictures.with_name("others")) == 2
    assert "images of 1 classes that the head does not know" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_with_code_1(
    run_folder: Path, pictures: Path, tmp_path: Path, capsys: Capture
) -> None:
    (pictures / "red" / "0.png").write_bytes(b"no picture")
    if sys.platform == "linux":  # where a name is of any bytes
        (pictures / "red" / "1.png").rename(pictures / "red" / os.fsdecode(b"\xe9.png"))
    assert inspect(run_folder, pictures, "--out", str(tmp_path / "page.html")) == 1
    assert "not read: red/0.png" in capsys.readouterr().err
