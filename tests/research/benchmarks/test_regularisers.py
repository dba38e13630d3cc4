"""The grid is evaluated as the solvers would; the table says what its lines say."""

import functools

import pytest
import torch

from fedstats_app.heads import solve_gaussian, solve_ridge
from fedstats_app.heads.scatter import class_mean_products
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks import regularisers
from research.benchmarks.features import Features
from research.benchmarks.regularisers import GRID


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
    ridge = functools.partial(solve_ridge, sums)
    solvers = {
        "fed3r": lambda factor: ridge(ridge_lambda=factor * unit),
        "fed3r without between-class": lambda factor: ridge(ridge_lambda=factor * unit, between_class=False),
        "fedcgs within": lambda factor: solve_gaussian(sums, covariance="within", shrinkage=factor),
    }
    for name, solve in solvers.items():
        expected = [100 * data.accuracy(solve(factor)) for factor in GRID[1:-1]]
        assert found[name][2][1:-1] == pytest.approx(expected), name
