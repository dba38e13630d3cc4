"""Small experiments, and the benchmarks that print lines of JSON and a table of them."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from research.benchmarks.lines import read

SETTINGS = "dataset=builtin backbone=random:tiny feature-cache=off input-size=8"
FEW = f"{SETTINGS} partition.samples-per-class=12"


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Any]]:
    """Run a benchmark and return its lines, whose table it prints again from their file."""

    def run(benchmark: ModuleType, kind: type, *arguments: str) -> list[Any]:
        lines = tmp_path / "lines.jsonl"
        benchmark.main([*arguments, "--lines", str(lines)])
        *_, table = capsys.readouterr().out.split("}\n")
        benchmark.main(["--table", str(lines)])
        assert capsys.readouterr().out == table and table.strip()
        return read(lines, kind)

    return run


@pytest.fixture
def sixty(tmp_path: Path) -> str:
    """Sixty grey images of three classes, as settings."""
    for place in range(60):
        file = tmp_path / "data" / ("train", "test")[place % 4 == 0] / f"class{place % 3}" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 80 * (place % 3) + place % 7).save(file)
    return f"dataset='folder:{tmp_path}/data' backbone=random:tiny feature-cache=off input-size=8"
