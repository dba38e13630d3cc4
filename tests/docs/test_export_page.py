"""The page's program predicts with the file that its command writes, where there is no torch."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import fedstats_app
from fedstats_app.cli import main
from tests.docs.markdown import DOCS, REPOSITORY, blocks, items
from tests.support.sentences import text_folder
from tests.support.simulation import simulate

PAGE = DOCS / "export.md"
WITHOUT_TORCH = "import sys\nfor name in ('torch', 'fedstats_app', 'onnx'):\n    sys.modules[name] = None\n"


def test_the_program_predicts_without_torch(home: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = blocks(PAGE, "bash")[0].code.splitlines()
    assert main([word.replace("~", str(home)) for word in shlex.split(first)[1:]]) == 0
    assert "compared with torch on 32 images" in capsys.readouterr().out
    program = (REPOSITORY / "examples" / "onnx" / "predict_images.py").read_text(encoding="utf-8")
    pictures = sorted((image_folder / "test").rglob("*.png"))
    expected = fedstats_app.load(home / "fedstats-runs" / "20260101-120000").top(pictures, 1)
    predicts_the_same(program, [str(path) for path in pictures], expected)
    header = onnxruntime.InferenceSession("flowers.onnx").get_modelmeta().custom_metadata_map
    assert {entry for item in items(PAGE, "Images") for entry in re.findall(r"`([\w-]+)`", item[0])} == set(header)
    assert "feed" in json.loads(header["preprocessing"])


def test_the_program_for_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = text_folder(tmp_path / "reviews")
    run = simulate(
        tmp_path,
        dataset=f"folder:{folder}",
        backbone="random:tiny-text",
        input_size=0,
        num_clients=2,
        partitioner="iid",
        method="fedncm",
        cache_dir=str(tmp_path / "cache"),
    )
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--onnx", "reviews.onnx"]) == 0
    assert "reviews.tokenizer.json" in capsys.readouterr().out
    program = (REPOSITORY / "examples" / "onnx" / "predict_texts.py").read_text(encoding="utf-8")
    texts = ["a gripping film", "dull, " * 200 + "and long"]
    predicts_the_same(program, texts, fedstats_app.load(run).top(texts, 1))


def predicts_the_same(program: str, samples: list[str], expected: list[list[tuple[str, float]]]) -> None:
    """Run a program without torch, and compare what it prints with a classifier's first choices."""
    words = [sys.executable, "-c", WITHOUT_TORCH + program, *samples]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    printed = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    assert [(sample, name) for sample, name, _ in printed] == [
        (sample, name) for sample, [(name, _)] in zip(samples, expected, strict=True)
    ]
    assert max([abs(float(made[2]) - one[0][1]) for made, one in zip(printed, expected, strict=True)]) < 1e-4
