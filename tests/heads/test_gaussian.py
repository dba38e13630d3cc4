import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedstats_app.heads import solve_gaussian
from fedstats_app.statistics import FeatureStatistics
from tests.support.compare import absolute_difference, relative_difference
from tests.support.golden import Federation

both_covariances = pytest.mark.parametrize("covariance", ["total", "within"])


def _problem(n: int = 300, dim: int = 5, num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    labels = rng.choice(num_classes, n, p=[0.4, 0.3, 0.2, 0.1])
    mixing = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))
    return rng.normal(size=(num_classes, dim))[labels] * 2 + rng.normal(size=(n, dim)) @ mixing, labels


def _statistics(features: np.ndarray, labels: np.ndarray, num_classes: int = 4) -> FeatureStatistics:
    return FeatureStatistics.from_features(torch.from_numpy(features), torch.from_numpy(labels), num_classes)


@both_covariances
def test_golden_heads(federation: Federation, covariance: str, solved: list) -> None:
    stats = federation.statistics()
    sigma = federation[f"cgs_Sigma_{covariance}"]
    head = solve_gaussian(stats, covariance=covariance)
    assert relative_difference(solved[0].matrix, sigma) <= 1e-12
    assert (f"cgs_W_{covariance}" in federation) == (int(federation[f"cgs_rank_{covariance}"]) == stats.feature_dim)
    if f"cgs_W_{covariance}" in federation:
        assert head.report.rank is None and relative_difference(head.weight, federation[f"cgs_W_{covariance}"]) <= 1e-9
        _same_bias(head.bias, federation[f"cgs_b_{covariance}"])
    else:
        assert head.report.rank == int(federation[f"cgs_rank_{covariance}"])
    shrunk = solve_gaussian(stats, covariance=covariance, shrinkage=1e-3)
    assert shrunk.report.ridge_effective == pytest.approx(float(federation[f"cgs_ridge_{covariance}"]), rel=1e-12)
    assert relative_difference(shrunk.weight, federation[f"cgs_W_{covariance}_ridge"]) <= 1e-9
    _same_bias(shrunk.bias, federation[f"cgs_b_{covariance}_ridge"])


def _same_bias(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert absolute_difference(actual, expected) <= 1e-9 * np.abs(expected[np.isfinite(expected)]).max()


def test_the_authors_covariance_and_head_are_ours(federation: Federation, solved: list) -> None:
    stats = federation.statistics()
    head = solve_gaussian(stats)
    assert relative_difference(solved[0].matrix, federation["ref_cgs_Sigma"]) <= 1e-12
    if "cgs_W_total" not in federation:  # the reference inverts a singular matrix: noise
        return
    present = stats.present.numpy()
    assert relative_difference(head.weight[stats.present], federation["ref_cgs_W_f32"][present]) <= 1e-6
    assert relative_difference(head.bias[stats.present], federation["ref_cgs_b_f32"][present]) <= 1e-6


def test_the_bias_is_not_the_printed_one(federation: Federation) -> None:
    if "cgs_W_total" not in federation:
        return
    stats = federation.statistics()
    literal = federation["cgs_b_eq11_literal"][stats.present.numpy()]
    assert relative_difference(solve_gaussian(stats).bias[stats.present], literal) > 1e-3


def test_the_within_class_head_is_scikit_learns_discriminant_analysis() -> None:
    features, labels = _problem()
    head = solve_gaussian(_statistics(features, labels), covariance="within")
    fitted = LinearDiscriminantAnalysis(solver="lsqr").fit(features, labels)
    # Its pooled covariance divides by N, ours by N - C: the estimate without bias.
    divisor = len(features) / (len(features) - 4)
    assert relative_difference(head.weight * divisor, fitted.coef_) <= 1e-10
    log_prior = np.log(np.bincount(labels) / len(labels))
    quadratic = (head.bias.numpy() - log_prior) * divisor
    assert relative_difference(quadratic, fitted.intercept_ - log_prior) <= 1e-10


@both_covariances
@pytest.mark.parametrize(("value", "n"), [(0.1, 60), (1000.3, 1000)])
def test_the_rounding_of_a_constant_feature_is_not_taken_for_a_variance(covariance: str, value: float, n: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    features = rng.normal(size=(n, 4)) + 2 * np.eye(3, 4)[labels]
    constant = np.column_stack([np.full(n, np.float32(value), dtype=np.float64), features])
    head = solve_gaussian(_statistics(constant, labels, 3), covariance=covariance)
    without = solve_gaussian(_statistics(features, labels, 3), covariance=covariance)
    assert head.report.rank == 4 and "rank 4 of 5" in head.report.notes[0]
    tolerance = 1e-13 * value**2 * n  # what cancels
    assert relative_difference(head.weight[:, 1:], without.weight) <= max(tolerance, 1e-8)
    agree = head.predict(torch.from_numpy(constant)) == without.predict(torch.from_numpy(features))
    assert bool(agree.all())
