"""Baselines and our methods are measured on the same split, and tables and picture follow from the lines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.benchmarks import adapters, baselines
from research.benchmarks.adapters import Adapted
from research.benchmarks.baselines import Compared
from research.benchmarks.lines import mean_and_half
from tests.research.benchmarks.conftest import FEW


def test_a_run_compares_and_draws(measured: Callable[..., list[Any]], tmp_path: Path) -> None:
    [found] = measured(baselines, Compared, FEW, "--clients", "5", "--seeds", "1")
    assert {"FedNCM", "FedRoot", "CCVR", "FedPFT-10", "one-shot FedAvg", "ensemble, probabilities"} <= set(
        found.accuracy
    )
    assert found.accuracy.keys() == found.megabytes.keys()
    assert found.accuracy.keys() - found.formula.keys() == {"FedRoot", "FedPFT-1"}
    assert all(0 <= value <= 100 for value in found.accuracy.values())
    # A covariance as its triangle is about half of the formula's; counts and headers are all that is above FedNCM's.
    assert 0.5 < found.megabytes["CCVR"] / found.formula["CCVR"] < 0.7
    assert found.formula["FedNCM"] == found.formula["FedCOF"] < found.megabytes["FedNCM"]
    baselines.draw([found], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_intervals_are_students() -> None:
    # Mean 3, standard deviation 1 of five values: 2.776 / sqrt(5).
    values = [3.0, 3.0 + 2**0.5, 3.0 - 2**0.5, 3.0, 3.0]
    assert mean_and_half(values) == pytest.approx((3.0, 1.2415), abs=1e-3)


def test_adapters_are_measured_on_the_same_clients(measured: Callable[..., list[Any]]) -> None:
    [found] = measured(adapters, Adapted, FEW, "--clients", "5", "--seeds", "1")
    sent = found.megabytes
    assert list(sent) == ["before", "whole", "LoRA", "SLoRA"]
    # 20 rounds of two clients each; a tiny feature of 16, 256 hidden units and ten classes.
    dim = round((sent["whole"] * 1e6 / (2 * 4 * 20 * 2) - 256 - 10 * 257) / 256)
    numbers = 8 * (dim + 256) + 256 + 10 * 257
    assert sent["LoRA"] * 1e6 == pytest.approx(2 * 4 * 20 * 2 * numbers)
