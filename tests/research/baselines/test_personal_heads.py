"""Personal heads: mixtures of statistics, and the weight chosen on a client's own samples."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import solve_gaussian, solve_ridge
from fedstats_app.statistics import FeatureStatistics
from research.baselines.personal_heads import (
    FOLDS,
    MIXING_GRID,
    MixtureSolver,
    choose_mixing,
    mixed_statistics,
    personal_head,
)
from tests.support.compare import relative_difference, same_bits

NUM_CLASSES, DIM = 4, 6


def ridge(**options: Any) -> MixtureSolver:
    return lambda stats, ratio: solve_ridge(stats, ridge_lambda=3.0 * ratio, **options)


def gaussian(**options: Any) -> MixtureSolver:
    return lambda stats, ratio: solve_gaussian(stats, shrinkage=0.05, **options)


RIDGE, GAUSSIAN = ridge(), gaussian()
SOLVERS = {"ridge": RIDGE, "ridge with bias": ridge(fit_bias=True), "ridge within": ridge(between_class=False)}
SOLVERS |= {"gaussian": GAUSSIAN, "gaussian within": gaussian(covariance="within")}
weights = st.floats(0.0, 1.0).map(lambda value: round(value, 3))


def draw(n: int, seed: int, *, classes: int = NUM_CLASSES, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return features and labels of the first ``classes`` classes; ``shift`` moves the class means by as much."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(NUM_CLASSES, DIM))
    moved = means + shift * np.random.default_rng(98).normal(size=(NUM_CLASSES, DIM))
    labels = rng.integers(0, classes, n)
    return torch.from_numpy(rng.normal(size=(n, DIM)) + moved[labels]).float(), torch.from_numpy(labels)


def statistics(features: Tensor, labels: Tensor) -> FeatureStatistics:
    return FeatureStatistics.from_features(features, labels, NUM_CLASSES)


GLOBAL = statistics(*draw(300, 0))


@pytest.mark.parametrize("name", SOLVERS)
def test_the_ends_are_the_global_and_the_local_head(name: str) -> None:
    solve, local = SOLVERS[name], statistics(*draw(40, 1))
    for mixing, of, scale in ((0.0, GLOBAL, 1.0), (1.0, local, 40 / 300)):
        head, expected = personal_head(GLOBAL, local, mixing, solve), solve(of, scale)
        assert same_bits(head.weight, expected.weight) and same_bits(head.bias, expected.bias)
        assert same_bits(head.present, expected.present)


@given(weights, st.integers(1, 60), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_mixture_is_that_of_the_averages(mixing: float, n: int, classes: int, seed: int) -> None:
    local = statistics(*draw(n, seed, classes=classes))
    mixture = mixed_statistics(GLOBAL, local, mixing)
    total = mixture.num_examples
    for name in ("class_counts", "class_sums", "gram"):
        ours, theirs, mixed = (getattr(one, name).double() for one in (local, GLOBAL, mixture))
        expected = (1 - mixing) * theirs / GLOBAL.num_examples + mixing * ours / n
        assert relative_difference(mixed / total, expected) < 1e-12


def choose(features: Tensor, labels: Tensor, solver: MixtureSolver = GAUSSIAN, key: int = 0) -> float:
    federation = GLOBAL + statistics(features, labels)
    everything = torch.ones(len(labels), dtype=torch.bool)
    return choose_mixing(federation, features, labels, solver, in_global=everything, key=(key,))


@pytest.mark.parametrize("solver", [RIDGE, GAUSSIAN])
def test_a_client_unlike_the_others_gets_a_head_of_its_own(solver: MixtureSolver) -> None:
    features, labels = draw(160, 7, classes=2, shift=3.0)
    choice = choose(features, labels, solver)
    assert choice >= 0.1
    test_features, test_labels = draw(2000, 8, classes=2, shift=3.0)
    local, federation = statistics(features, labels), GLOBAL + statistics(features, labels)
    own, shared = (
        int((personal_head(federation, local, mixing, solver).predict(test_features) == test_labels).sum())
        for mixing in (choice, 0.0)
    )
    assert own > shared + 40


def test_samples_are_predicted_from_what_they_are_not_in() -> None:
    features, labels = draw(81, 3)
    order = np.random.default_rng([0]).permutation(81)
    expected = [0] * len(MIXING_GRID)
    for fold in range(FOLDS):
        validation = torch.from_numpy(order[fold::FOLDS])
        others = torch.from_numpy(np.setdiff1d(order, validation))
        own = statistics(features[others], labels[others])
        for index, mixing in enumerate(MIXING_GRID):
            predicted = personal_head(GLOBAL + own, own, mixing, GAUSSIAN).predict(features[validation])
            expected[index] += int((predicted == labels[validation]).sum())
    assert choose(features, labels) == MIXING_GRID[expected.index(max(expected))]


def test_what_a_client_kept_back_is_not_taken_out() -> None:
    features, labels = draw(80, 3)
    sent = labels != 2  # it has too few samples of class 2 to send them
    federation = statistics(features[sent], labels[sent])
    assert choose_mixing(federation, features, labels, GAUSSIAN, in_global=sent, key=(0,)) in MIXING_GRID
    with pytest.raises(ValueError, match="of class 2 they have 0, the client takes out"):
        choose_mixing(federation, features, labels, GAUSSIAN, in_global=torch.ones_like(sent), key=(0,))


@pytest.mark.parametrize("grid", [(), (0.1, 0.2), (0.0, 0.5, 0.5)])
def test_a_grid_must_ascend_from_zero(grid: tuple[float, ...]) -> None:
    features, labels = draw(20, 0)
    with pytest.raises(ValueError, match="must ascend from 0"):
        choose_mixing(GLOBAL, features, labels, RIDGE, in_global=torch.ones(20, dtype=torch.bool), key=(0,), grid=grid)
