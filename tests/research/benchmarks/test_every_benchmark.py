"""Every benchmark of heads runs on a few samples, prints a line per measurement, and a table that is made of them."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from research.benchmarks import adapters, attacks_training, baselines, drawn_heads, noise, regularisers
from research.benchmarks.lines import mean_and_half
from tests.research.benchmarks.conftest import FEW, SETTINGS

FIVE = ("--clients", "5", "--seeds", "1")
# Module, its line, settings, and how many lines of which methods.
BENCHMARKS: dict[str, tuple[ModuleType, type, tuple[str, ...], int]] = {
    "baselines": (baselines, baselines.Compared, (FEW, *FIVE), 1),
    "adapters": (adapters, adapters.Adapted, (FEW, *FIVE), 1),
    "attacks on trainings": (
        attacks_training,
        attacks_training.Row,
        (FEW, "--clients", "4", "--per-class", "5", "--trainings", "fedavg"),
        4 * 2,  # attacks, "none" among them, and limits
    ),
    "drawn heads": (drawn_heads, drawn_heads.Compared, (FEW, "--seeds", "1"), 1),
    "noise": (noise, noise.Noisy, (FEW, "--epsilons", "1", "4", "--seeds", "1", "--per-class", "20"), 2),
    "regularisers": (
        regularisers,
        regularisers.Loss,
        (f"{SETTINGS} fedroot.rank=2", "--clients", "3", "--per-class", "4", "--seeds", "2"),
        6,
    ),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_lines_and_table(name: str, measured: Callable[..., list[Any]]) -> None:
    module, kind, arguments, number = BENCHMARKS[name]
    found = measured(module, kind, *arguments)
    assert len(found) == number
    for accuracies in (one.accuracy for one in found if isinstance(getattr(one, "accuracy", None), dict)):
        values = [value for one in accuracies.values() for value in (one if isinstance(one, list) else [one])]
        assert values and all(0 <= value <= 100 for value in values)
    if name == "baselines":
        [one] = found
        # A covariance as its triangle is about half of the formula's; counts and headers are all above FedNCM's.
        assert 0.5 < one.megabytes["CCVR"] / one.formula["CCVR"] < 0.7
        assert one.formula["FedNCM"] == one.formula["FedCOF"] < one.megabytes["FedNCM"]


def test_intervals_are_students() -> None:
    # Mean 3, standard deviation 1 of five values: 2.776 / sqrt(5).
    assert mean_and_half([3.0, 3.0 + 2**0.5, 3.0 - 2**0.5, 3.0, 3.0]) == pytest.approx((3.0, 1.2415), abs=1e-3)
