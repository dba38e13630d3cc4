import numpy as np
import torch

from fedstats_app.heads import solve_ridge
from fedstats_app.statistics import FeatureStatistics
from tests.support.compare import absolute_difference, relative_difference
from tests.support.golden import Federation

LAMBDA = 0.01


def _statistics(features: np.ndarray, labels: np.ndarray, num_classes: int = 4) -> FeatureStatistics:
    return FeatureStatistics.from_features(torch.from_numpy(features), torch.from_numpy(labels), num_classes)


def test_golden_heads(federation: Federation, solved: list) -> None:
    stats = federation.statistics()
    raw = solve_ridge(stats, ridge_lambda=LAMBDA, normalize=False)
    shifted = federation["fed3r_G"] + LAMBDA * np.eye(stats.feature_dim)
    assert relative_difference(solved[0].matrix, shifted) <= 1e-12
    assert relative_difference(solved[0].rhs.T, federation["class_sum"]) <= 1e-12
    assert relative_difference(raw.weight, federation["fed3r_Wraw"]) <= 1e-9
    assert absolute_difference(solve_ridge(stats, ridge_lambda=LAMBDA).weight, federation["fed3r_W"]) <= 1e-9


def test_golden_heads_with_bias(federation: Federation, solved: list) -> None:
    head = solve_ridge(federation.statistics(), ridge_lambda=LAMBDA, fit_bias=True)
    assert absolute_difference(head.weight, federation["fed3rb_W"]) <= 1e-9
    assert absolute_difference(head.bias, federation["fed3rb_b"]) <= 1e-9
    assert absolute_difference(head.weight, federation["ref_fed3roff_W_f64"]) <= 1e-9
    assert absolute_difference(head.bias, federation["ref_fed3roff_b_f64"]) <= 1e-9
    assert absolute_difference(head.weight, federation["ref_fed3roff_W_f32"]) <= 1e-2
    assert absolute_difference(head.bias, federation["ref_fed3roff_b_f32"]) <= 1e-2
    assert relative_difference(solved[0].matrix, federation["ref_fed3roff_A_f64"]) <= 1e-12
    assert relative_difference(solved[0].matrix, federation["ref_fed3roff_A_f32"]) <= 1e-6


def test_golden_heads_without_between_class_scatter(federation: Federation, solved: list) -> None:
    stats = federation.statistics()
    head = solve_ridge(stats, ridge_lambda=LAMBDA, between_class=False)
    identity = LAMBDA * np.eye(stats.feature_dim)
    assert relative_difference(solved[0].matrix, federation["fed3rw_G"] + identity) <= 1e-12
    removed = federation["fed3r_G"] + identity - solved[0].matrix.numpy()
    assert relative_difference(removed, federation["G_btw"], scale=np.abs(federation["fed3r_G"]).max()) <= 1e-12
    assert absolute_difference(head.weight, federation["fed3rw_W"]) <= 1e-9


def test_the_fedcof_oracle_is_ridge_without_between_class_scatter(federation: Federation, solved: list) -> None:
    stats = federation.statistics()
    ridge_lambda = float(federation["gamma"]) * (stats.num_examples - int(stats.present.sum()))
    head = solve_ridge(stats, ridge_lambda=ridge_lambda, between_class=False)
    assert relative_difference(solved[0].matrix, federation["oracle_full_G"]) <= 1e-12
    assert absolute_difference(head.weight, federation["oracle_full_W"]) <= 1e-10


def test_the_authors_heads_are_ours(federation: Federation, solved: list) -> None:
    head = solve_ridge(federation.statistics(), ridge_lambda=LAMBDA)
    assert relative_difference(solved[0].matrix, federation["ref_fed3r_G_f64"]) <= 1e-12
    assert relative_difference(solved[0].matrix, federation["ref_fed3r_G_f32"]) <= 1e-6
    assert relative_difference(solved[0].x.T, federation["ref_fed3r_Wraw_f64"]) <= 1e-9
    assert absolute_difference(head.weight, federation["ref_fed3r_W_f64"]) <= 1e-9
    assert absolute_difference(head.weight, federation["ref_fed3r_W_f32"]) <= 1e-2


def test_the_float32_pseudo_inverse_truncates_as_the_papers_numbers_did() -> None:
    # Eigenvalues from 1e6 down to 0.1 of a matrix whose float32 cut-off is 1e6 d eps32 = 3.8.
    generator = torch.Generator().manual_seed(0)
    vectors, _ = torch.linalg.qr(torch.randn(32, 32, generator=generator, dtype=torch.float64))
    eigenvalues = torch.logspace(6, -1, 32, dtype=torch.float64)
    gram = vectors @ torch.diag(eigenvalues) @ vectors.T
    sums = torch.randn(3, 32, generator=generator, dtype=torch.float64)
    stats = FeatureStatistics(torch.tensor([5, 5, 5]), sums, (gram + gram.T) / 2)
    kept = eigenvalues + LAMBDA > 32 * torch.finfo(torch.float32).eps * eigenvalues[0]
    truncated = (vectors[:, kept] / (eigenvalues[kept] + LAMBDA)) @ vectors[:, kept].T @ sums.T
    head = solve_ridge(stats, ridge_lambda=LAMBDA, solver="pinv32", normalize=False)
    exact = solve_ridge(stats, ridge_lambda=LAMBDA, normalize=False)
    assert head.report.rank == int(kept.sum()) < 32
    assert relative_difference(head.weight, truncated.T) < 0.1  # float32 at a condition number of 1e5
    assert relative_difference(exact.weight, truncated.T) > 10


def test_more_features_than_samples_without_a_ridge_gives_least_norm_and_says_the_rank() -> None:
    features, labels = np.random.default_rng(0).normal(size=(6, 20)), np.arange(6) % 2
    head = solve_ridge(_statistics(features, labels, 2), ridge_lambda=0.0, normalize=False)
    expected = np.linalg.pinv(features) @ np.eye(2)[labels]
    assert relative_difference(head.weight, expected.T) <= 1e-9 and head.report.rank == 6
    assert any("rank 6 of 20" in note for note in head.report.notes)
