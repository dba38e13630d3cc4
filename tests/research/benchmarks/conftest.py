"""Small experiments, and the benchmarks that print lines of JSON and a table of them."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from research.benchmarks.lines import read

SETTINGS = "dataset=builtin backbone=random:tiny feature-cache=off input-size=8"
FEW = f"{SETTINGS} partitioner=dirichlet@samples-per-class=12"


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
