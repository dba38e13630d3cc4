"""Curves of MeZO's methods and of SLoRA: every method and split has its line, and the best rate counts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from research.baselines.dist_mezo import DistMezoOptions
from research.benchmarks import mezo_curves
from research.benchmarks.features import Features
from research.benchmarks.mezo_curves import Curve

SMALL = ("--clients", "3", "--seeds", "1", "--hidden", "4", "--rounds", "8", "5", "--rates", "0.001", "--batch", "8")


def test_lines_and_table(measured: Callable[..., list[Any]], sixty: str) -> None:
    lines = measured(mezo_curves, Curve, sixty, *SMALL, "--alphas", "1")
    assert [line.method for line in lines] == [
        "SLoRA",
        "FedMeZO",
        "DistMeZO, 1 local step(s)",
        "DistMeZO, 5 local step(s)",
    ]
    assert {len(line.accuracy) for line in lines} == {mezo_curves.POINTS}
    numbers = 4 * (32 + 1) + 3 * (4 + 1)
    assert [line.megabytes * 1e6 for line in lines[1:]] == pytest.approx([8 * 9, *2 * [8 * 8 * 3 * numbers]])


def test_a_curve_that_leaves_the_numbers_ends_at_0() -> None:
    labels = torch.arange(40) % 2
    data = Features(torch.eye(2)[labels], labels, torch.eye(2)[labels], labels, 2)
    far = DistMezoOptions(1e38, own_directions=False)
    parts = [np.arange(20), np.arange(20, 40)]
    slora, mezo = mezo_curves.measure(data, parts, 0, [("far", far)], hidden=30, mezo_rounds=6, slora_rounds=5)
    assert len(slora[2]) == len(mezo[2]) == mezo_curves.POINTS and mezo[2][-1] == 0.0


def test_the_rate_that_is_best_at_the_end_counts_for_all_seeds() -> None:
    lines = [
        Curve(1.0, seed, "FedMeZO", rate, [90.0, end], 1.0)
        for rate, ends in ((0.1, (40.0, 44.0)), (0.2, (45.0, 43.0)), (0.3, (99.0, 0.0)))
        for seed, end in enumerate(ends)
    ]
    assert {line.rate for line in mezo_curves.best(lines)} == {0.3}
    assert {line.rate for line in mezo_curves.best(lines[:4])} == {0.2}
