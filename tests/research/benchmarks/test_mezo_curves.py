"""Curves of MeZO's methods and of SLoRA: every method and split has its line, and the best rate counts."""

from collections.abc import Callable
from typing import Any

import pytest

from research.benchmarks import mezo_curves
from research.benchmarks.mezo_curves import Curve

SMALL = ("--clients", "3", "--seeds", "1", "--hidden", "4", "--rounds", "8", "5", "--rates", "0.001", "--batch", "8")


def test_lines_and_table(measured: Callable[..., list[Any]], sixty: str) -> None:
    lines = measured(mezo_curves, Curve, sixty, *SMALL, "--alphas", "1")
    steps = [f"DistMeZO, {number} local step(s)" for number in (1, 5)]
    assert [line.method for line in lines] == ["SLoRA", "FedMeZO", *steps]
    assert {len(line.accuracy) for line in lines} == {mezo_curves.POINTS}
    numbers = 4 * (32 + 1) + 3 * (4 + 1)
    assert [line.megabytes * 1e6 for line in lines[1:]] == pytest.approx([8 * 9, *2 * [8 * 8 * 3 * numbers]])
