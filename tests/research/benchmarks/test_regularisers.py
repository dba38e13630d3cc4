"""The grid is evaluated as the solvers would; the table says what its lines say."""

from collections.abc import Callable

import pytest
import torch

from fedstats_app.heads import solve_gaussian, solve_ridge
from fedstats_app.heads.scatter import class_mean_products
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks import regularisers
from research.benchmarks.features import Features
from research.benchmarks.regularisers import GRID, Loss
from tests.research.benchmarks.conftest import SETTINGS


def _data() -> Features:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 12, generator=generator)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 3
        return 0.6 * means[labels] + torch.randn(count, 12, generator=generator), labels

    return Features(*draw(90), *draw(300), 3)


def test_the_grid_gives_the_accuracies_of_the_solvers() -> None:
    data = _data()
    sums = FeatureStatistics.from_features(data.train, data.train_labels, 3)
    assert sums.gram is not None
    unit = float((sums.gram - class_mean_products(sums)).trace()) / 12
    found = regularisers._of_sums(sums, data.test.double(), data)
    solvers = {
        "fed3r": lambda factor: solve_ridge(sums, ridge_lambda=factor * unit),
        "fed3r without between-class": lambda factor: solve_ridge(
            sums, ridge_lambda=factor * unit, between_class=False
        ),
        "fedcgs within": lambda factor: solve_gaussian(sums, covariance="within", shrinkage=factor),
    }
    for name, solve in solvers.items():
        expected = [100 * data.accuracy(solve(factor)) for factor in GRID[1:-1]]
        assert found[name][2][1:-1] == pytest.approx(expected), name


def test_every_method_has_a_line_per_configuration(measured: Callable[..., list[Loss]]) -> None:
    sizes = ("--clients", "3", "--per-class", "4", "--seeds", "2")
    losses = measured(regularisers, Loss, f"{SETTINGS} fedroot-rank=2", *sizes)
    assert {one.method for one in losses} == {
        "fed3r",
        "fed3r without between-class",
        "fedcgs total",
        "fedcgs within",
        "fedcof",
        "fedroot",
    }
    assert all(one.seeds == 2 and 0 <= one.automatic <= 100 and 0 <= one.fedncm <= 100 for one in losses)
    assert all(one.num_clients == (3 if one.method in ("fedcof", "fedroot") else 0) for one in losses)


def test_the_table_counts_losses_notes_and_what_lies_below_fedncm() -> None:
    def line(per_class: int, automatic: float, fedncm: float, notes: int) -> Loss:
        return Loss("one", per_class, 0, "fed3r", automatic, 80.0, fedncm, 1.0, notes, 5)

    table = regularisers.table([line(5, 79.0, 79.4, 0), line(20, 77.0, 79.9, 5)])
    assert table.splitlines()[-1] == "| fed3r | 2 | 2.00 | 3.00 | 0.40 | 50% |"
