"""Prompt tuning's benchmark: every start and method has its line, and bytes follow the pool."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.benchmarks import prompts
from research.formulas import TableSizes, formula_bytes
from tests.support.sentences import text_folder

pytest.importorskip("transformers", reason="needs the extra `text`")
pytest.importorskip("scipy", reason="comes with the extra `sklearn`")

SMALL = ("--clients", "2", "--rounds", "2", "--pool", "4", "--tokens", "2", "--test", "8", "--rate", "0.05")


def test_lines_and_table(measured: Callable[..., list[Any]], tmp_path: Path) -> None:
    for split, each in (("train", 8), ("test", 4)):
        text_folder(tmp_path / split, each=each)
    experiment = f"dataset='folder:{tmp_path}' backbone=random:tiny-text input-size=16 partitioner=iid"
    lines = measured(prompts, prompts.Tuned, experiment, *SMALL)
    methods = ["head only", "FedAvg-PT", "FedProx-PT", "FedAvg-PT, chosen", "PFPT"]
    assert [(line.start, line.method) for line in lines] == [(s, m) for s in ("random", "Fed3R") for m in methods]
    assert all(len(line.accuracy) == 4 and 0 <= min(line.accuracy) <= max(line.accuracy) <= 100 for line in lines)
    for line in lines:
        expected = [formula_bytes("pfpt", TableSizes(0, 2, 2, 32, prompts=one)) / 1e6 for one in line.prompts]
        assert line.megabytes == expected and line.prompts[0] == (0 if line.method == "head only" else 4)
        assert line.method == "PFPT" or line.prompts[1] == line.prompts[0]
    # With the same pool drawn they begin alike.
    chosen, matched = (line.accuracy[:2] for line in lines[3:5])
    assert chosen == matched
