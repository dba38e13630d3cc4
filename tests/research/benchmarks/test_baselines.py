"""Baselines and our methods are measured on the same split, and tables and picture follow from the lines."""

import json
from pathlib import Path

import pytest

from research.benchmarks import adapters, baselines
from research.benchmarks.adapters import Adapted
from research.benchmarks.baselines import Compared, mean_and_half

_SETTINGS = "dataset=builtin backbone=random:tiny feature-cache=off input-size=8 samples-per-class=12"


def test_a_run_prints_a_line_the_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, picture = tmp_path / "lines.jsonl", tmp_path / "picture.png"
    baselines.main([_SETTINGS, "--clients", "5", "--seeds", "1", "--lines", str(lines), "--picture", str(picture)])
    printed = capsys.readouterr().out
    found = Compared(**json.loads(lines.read_text()))
    assert {"FedNCM", "FedRoot", "CCVR", "FedPFT-10", "one-shot FedAvg", "ensemble, probabilities"} <= set(
        found.accuracy
    )
    assert found.accuracy.keys() == found.megabytes.keys()
    assert found.accuracy.keys() - found.formula.keys() == {"FedRoot", "FedPFT-1"}
    assert all(0 <= value <= 100 for value in found.accuracy.values())
    # A covariance as its triangle is about half of the formula's; counts and headers are all that is above FedNCM's.
    assert 0.5 < found.megabytes["CCVR"] / found.formula["CCVR"] < 0.7
    assert found.formula["FedNCM"] == found.formula["FedCOF"] < found.megabytes["FedNCM"]
    assert picture.stat().st_size > 10_000
    baselines.main(["--table", str(lines)])
    assert capsys.readouterr().out.strip() in printed


def test_intervals_are_students() -> None:
    # Mean 3, standard deviation 1 of five values: 2.776 / sqrt(5).
    values = [3.0, 3.0 + 2**0.5, 3.0 - 2**0.5, 3.0, 3.0]
    assert mean_and_half(values) == pytest.approx((3.0, 1.2415), abs=1e-3)


def test_adapters_are_measured_on_the_same_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.jsonl"
    adapters.main([_SETTINGS, "--clients", "5", "--seeds", "1", "--lines", str(lines)])
    found = Adapted(**json.loads(lines.read_text()))
    sent = found.megabytes
    assert list(sent) == ["before", "whole", "LoRA", "FedEx-LoRA", "SLoRA"] and "| SLoRA |" in capsys.readouterr().out
    # 20 rounds of two clients each; a tiny feature of 16, 256 hidden units and ten classes.
    dim = round((sent["whole"] * 1e6 / (2 * 4 * 20 * 2) - 256 - 10 * 257) / 256)
    numbers = 8 * (dim + 256) + 256 + 10 * 257
    assert sent["LoRA"] * 1e6 == pytest.approx(2 * 4 * 20 * 2 * numbers)
    assert sent["FedEx-LoRA"] > sent["LoRA"]
