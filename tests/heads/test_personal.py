"""Personal heads: mixtures of statistics, and the weight chosen on a client's own samples."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import solve_gaussian, solve_ridge
from fedstats_app.heads.personal import (
    FOLDS,
    MIXING_GRID,
    MixtureSolver,
    choose_mixing,
    mixed_statistics,
    personal_head,
)
from fedstats_app.statistics import FeatureStatistics
from tests.support.compare import relative_difference, same_bits

NUM_CLASSES, DIM = 4, 6


def ridge(**options: Any) -> MixtureSolver:
    return lambda stats, ratio: solve_ridge(stats, ridge_lambda=3.0 * ratio, **options)


def gaussian(**options: Any) -> MixtureSolver:
    return lambda stats, ratio: solve_gaussian(stats, shrinkage=0.05, **options)


RIDGE, GAUSSIAN = ridge(), gaussian()
SOLVERS = {
    "ridge": RIDGE,
    "ridge with bias": ridge(fit_bias=True),
    "ridge within": ridge(between_class=False),
    "gaussian": GAUSSIAN,
    "gaussian within": gaussian(covariance="within"),
}
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


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("mixing", [0.05, 0.3, 0.9])
def test_a_client_like_the_federation_changes_nothing(name: str, mixing: float) -> None:
    """Mixing a federation with a third of itself, in every class alike, is that federation at every weight."""
    features, labels = draw(100, 5)
    local = statistics(features, labels)
    federation = statistics(features.repeat(3, 1), labels.repeat(3))
    head, expected = personal_head(federation, local, mixing, SOLVERS[name]), SOLVERS[name](federation, 1.0)
    # Covariances are divided by the number of samples less one (or less C), so not quite.
    exact = "gaussian" not in name
    assert relative_difference(head.weight, expected.weight) < (1e-9 if exact else 0.02)


@given(weights, st.integers(2, 5))
def test_the_weight_means_the_same_whatever_the_sizes(mixing: float, times: int) -> None:
    features, labels = draw(40, 1, classes=2)
    local, larger = statistics(features, labels), statistics(features.repeat(times, 1), labels.repeat(times))
    one, other = (personal_head(GLOBAL, stats, mixing, RIDGE) for stats in (local, larger))
    assert relative_difference(one.weight, other.weight) < 1e-9


def choose(features: Tensor, labels: Tensor, solver: MixtureSolver = GAUSSIAN, key: int = 0) -> object:
    federation = GLOBAL + statistics(features, labels)
    everything = torch.ones(len(labels), dtype=torch.bool)
    return choose_mixing(federation, features, labels, solver, in_global=everything, key=(key,))


@pytest.mark.parametrize("solver", [RIDGE, GAUSSIAN])
def test_a_client_unlike_the_others_gets_a_head_of_its_own(solver: MixtureSolver) -> None:
    features, labels = draw(160, 7, classes=2, shift=3.0)
    choice = choose(features, labels, solver)
    assert choice.mixing >= 0.1
    assert choice.num_validation == 160 and len(choice.num_correct) == len(MIXING_GRID)
    test_features, test_labels = draw(2000, 8, classes=2, shift=3.0)
    local, federation = statistics(features, labels), GLOBAL + statistics(features, labels)
    own, shared = (
        int((personal_head(federation, local, mixing, solver).predict(test_features) == test_labels).sum())
        for mixing in (choice.mixing, 0.0)
    )
    assert own > shared + 40


@settings(max_examples=8)
@given(st.integers(0, 80), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_choice_is_never_worse_than_the_global_head_where_it_is_made(n: int, seed: int, classes: int) -> None:
    choice = choose(*draw(n, seed, classes=classes), key=seed)
    assert choice.num_validation == (n if n >= FOLDS else 0)
    if choice.num_validation:
        best = max(choice.num_correct)
        assert choice.mixing == MIXING_GRID[choice.num_correct.index(best)]  # the smallest of the best
    else:
        assert choice.mixing == 0.0 and choice.num_correct == ()


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
    assert list(choose(features, labels).num_correct) == expected


def test_what_a_client_kept_back_is_not_taken_out() -> None:
    features, labels = draw(80, 3)
    sent = labels != 2  # it has too few samples of class 2 to send them
    federation = statistics(features[sent], labels[sent])
    choice = choose_mixing(federation, features, labels, GAUSSIAN, in_global=sent, key=(0,))
    assert choice.num_validation == 80
    with pytest.raises(ValueError, match="of class 2 they have 0, the client takes out"):
        choose_mixing(federation, features, labels, GAUSSIAN, in_global=torch.ones_like(sent), key=(0,))


@pytest.mark.parametrize("grid", [(), (0.1, 0.2), (0.0, 0.5, 0.5), (0.0, 0.5, 0.2)])
def test_a_grid_must_ascend_from_zero(grid: tuple[float, ...]) -> None:
    features, labels = draw(20, 0)
    with pytest.raises(ValueError, match="must ascend from 0"):
        choose_mixing(GLOBAL, features, labels, RIDGE, in_global=torch.ones(20, dtype=torch.bool), key=(0,), grid=grid)


@pytest.mark.parametrize("mixing", [-0.1, 1.1, math.nan])
def test_a_weight_out_of_range_is_refused(mixing: float) -> None:
    with pytest.raises(ValueError, match=r"mixing must lie in \[0, 1\]"):
        mixed_statistics(GLOBAL, GLOBAL, mixing)


def test_counts_that_would_overflow_are_refused() -> None:
    huge = FeatureStatistics(torch.full((NUM_CLASSES,), 10**9 + 7), GLOBAL.class_sums, GLOBAL.gram)
    larger = FeatureStatistics(torch.full((NUM_CLASSES,), 10**10 + 19), GLOBAL.class_sums, GLOBAL.gram)
    with pytest.raises(ValueError, match="too many samples to mix"):
        mixed_statistics(larger, huge, 0.123)
