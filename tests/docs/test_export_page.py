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
from tests.docs.markdown import DOCS, blocks, rows

PAGE = DOCS / "export.md"
WITHOUT_TORCH = "import sys\nfor name in ('torch', 'fedstats_app', 'onnx'):\n    sys.modules[name] = None\n"


def test_the_program_predicts_without_torch(home: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = blocks(PAGE, "bash")[0].code.splitlines()
    assert main([word.replace("~", str(home)) for word in shlex.split(first)[1:]]) == 0
    assert "compared with torch on 32 images" in capsys.readouterr().out
    [block] = blocks(PAGE, "python")
    pictures = sorted((image_folder / "test").rglob("*.png"))
    program = [sys.executable, "-c", WITHOUT_TORCH + block.code, *map(str, pictures)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    printed = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    expected = fedstats_app.load(home / "fedstats-runs" / "20260101T120000Z-1").top(pictures, 1)
    assert [(path, name) for path, name, _ in printed] == [
        (str(path), name) for path, [(name, _)] in zip(pictures, expected, strict=True)
    ]
    differences = [abs(float(made[2]) - one[0][1]) for made, one in zip(printed, expected, strict=True)]
    assert max(differences) < 1e-4
    header = onnxruntime.InferenceSession("flowers.onnx").get_modelmeta().custom_metadata_map
    assert {entry for row in rows(PAGE, "entry") for entry in re.findall(r"`([\w-]+)`", row[0])} == set(header)
    assert "feed" in json.loads(header["preprocessing"])


def test_the_program_is_as_short_as_promised() -> None:
    [block] = blocks(PAGE, "python")
    statements = [line for line in block.code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(statements) <= 10
