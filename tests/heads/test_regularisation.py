import math

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.linear_model import RidgeCV

from fedstats_app.heads.regularisation import (
    GCV_HIGHEST,
    GCV_LOWEST,
    GCV_PER_DECADE,
    gcv_ridge_lambda,
    oas_shrinkage,
)


def _problem(n: int, dim: int, num_classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, n)
    scales = np.logspace(0, -2, dim)
    return (rng.normal(size=(num_classes, dim))[labels] + 2 * rng.normal(size=(n, dim))) * scales, np.eye(num_classes)[
        labels
    ]


def _chosen(features: np.ndarray, targets: np.ndarray) -> float:
    return gcv_ridge_lambda(
        torch.from_numpy(features.T @ features), torch.from_numpy(features.T @ targets), len(features)
    )


def _gcv_on_the_data(features: np.ndarray, targets: np.ndarray, ridge: float) -> float:
    n, dim = features.shape
    hat = features @ np.linalg.solve(features.T @ features + ridge * np.eye(dim), features.T)
    residual = targets - hat @ targets
    return float((residual**2).sum() / n / (1 - np.trace(hat) / n) ** 2)


@pytest.mark.parametrize(("n", "dim"), [(200, 5), (80, 30), (60, 59), (30, 60)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gcv_chooses_the_candidate_that_is_best_on_the_data(n: int, dim: int, seed: int) -> None:
    features, targets = _problem(n, dim, seed=seed)
    mean_eigenvalue = (features**2).sum() / dim
    steps = round(GCV_PER_DECADE * math.log10(GCV_HIGHEST / GCV_LOWEST)) + 1
    candidates = mean_eigenvalue * np.geomspace(GCV_LOWEST, GCV_HIGHEST, steps)
    scores = [_gcv_on_the_data(features, targets, ridge) for ridge in candidates]
    assert _chosen(features, targets) == pytest.approx(candidates[int(np.argmin(scores))], rel=1e-9)


def test_gcv_comes_near_the_choice_of_leave_one_out() -> None:
    features, targets = _problem(150, 20)
    alphas = np.geomspace(1e-4, 1e4, 81)
    leave_one_out = RidgeCV(alphas=alphas, fit_intercept=False).fit(features, targets).alpha_
    chosen = _chosen(features, targets)
    assert _gcv_on_the_data(features, targets, chosen) <= _gcv_on_the_data(features, targets, leave_one_out) * 1.001
    assert abs(math.log10(chosen / leave_one_out)) < 0.5


def test_gcv_does_not_depend_on_the_scale_of_the_features() -> None:
    features, targets = _problem(100, 10)
    for scale in (1e-6, 1e6):
        assert _chosen(features * scale, targets) == pytest.approx(_chosen(features, targets) * scale**2, rel=1e-6)


def test_gcv_regularises_noise_more_than_signal() -> None:
    rng = np.random.default_rng(0)
    targets = np.eye(3)[rng.integers(0, 3, 100)]
    noise = rng.normal(size=(100, 20))
    signal = targets @ rng.normal(size=(3, 20)) + 0.01 * rng.normal(size=(100, 20))
    assert _chosen(noise, targets) / (noise**2).sum() > 100 * _chosen(signal, targets) / (signal**2).sum()


def test_gcv_on_no_features_gives_a_ridge_that_can_be_solved_with() -> None:
    assert gcv_ridge_lambda(torch.zeros(3, 3).double(), torch.zeros(3, 2).double(), 10) == 1.0


@pytest.mark.parametrize(("n", "dim"), [(10, 5), (50, 5), (8, 30), (200, 20)])
def test_oas_is_scikit_learns_but_for_the_terms_that_it_omits(n: int, dim: int) -> None:
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim))
    fitted = OAS(assume_centered=True).fit(draws)
    covariance = draws.T @ draws / n
    square, trace = np.trace(covariance @ covariance), np.trace(covariance)
    # scikit-learn leaves the 2/d of Chen et al.'s eq. 23 out, above and below, and says so: put them back.
    above = ((1 - 2 / dim) * square + trace**2) / (square + trace**2)
    below = (n + 1 - 2 / dim) / (n + 1)
    rho = fitted.shrinkage_ * above / below
    gamma = oas_shrinkage(torch.from_numpy(draws.T @ draws), n)
    # Their estimate is (1 - rho) S + rho tr(S)/d I, ours proportional to S + gamma I.
    assert gamma / (gamma + trace / dim) == pytest.approx(rho, rel=1e-10)


def test_oas_follows_the_scale_of_the_draws() -> None:
    draws = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)).double() * torch.arange(1, 7)
    scatter = draws.T @ draws
    assert oas_shrinkage(scatter * 1e12, 20) == pytest.approx(1e12 * oas_shrinkage(scatter, 20), rel=1e-9)


def test_oas_shrinks_less_the_more_it_has_seen() -> None:
    scatter = torch.diag(torch.tensor([10.0, 1.0, 0.1, 0.1], dtype=torch.float64))
    gammas = [oas_shrinkage(scatter * q, q) for q in (3, 30, 300, 3000)]
    assert gammas == sorted(gammas, reverse=True) and gammas[-1] > 0


@pytest.mark.parametrize(
    ("scatter", "freedom"),
    [
        (torch.eye(3).double(), 0),
        (torch.zeros(3, 3).double(), 5),
        (torch.eye(3).double(), 5),
        (torch.eye(1).double(), 5),
    ],
    ids=["no draws", "no variance", "isotropic", "one dimension"],
)
def test_oas_is_infinite_where_the_draws_say_nothing(scatter: torch.Tensor, freedom: int) -> None:
    assert oas_shrinkage(scatter, freedom) == math.inf
