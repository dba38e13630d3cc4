import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import solve_fedcof, solve_ncm
from fedstats_app.statistics import ClassMeanRows
from tests.support.compare import absolute_difference, relative_difference
from tests.support.golden import Federation, load
from tests.support.literal import fedcof, unit_rows


def _rows(seed: int, num_rows: int = 40, dim: int = 7, num_classes: int = 5) -> ClassMeanRows:
    generator = torch.Generator().manual_seed(seed)
    return ClassMeanRows(
        torch.randint(0, num_classes, (num_rows,), generator=generator),
        torch.randint(1, 9, (num_rows,), generator=generator),
        torch.rand(num_rows, dim, generator=generator, dtype=torch.float64),
        num_classes,
    )


def test_golden_heads(federation: Federation, solved: list) -> None:
    rows = federation.rows()
    head = solve_fedcof(rows, shrinkage=float(federation["gamma"]))
    assert relative_difference(solved[0].matrix, federation["cof_G"]) <= 1e-12
    assert relative_difference(solved[0].x.T, federation["cof_Wraw"]) <= 1e-10
    assert absolute_difference(head.weight, federation["cof_W"]) <= 1e-10
    assert absolute_difference(head.bias, np.zeros(federation.num_classes)) == 0.0
    for gamma in ("0.1", "10"):
        weight = solve_fedcof(rows, shrinkage=float(gamma)).weight
        assert absolute_difference(weight, federation[f"cof_W_gamma{gamma}"]) <= 1e-10
    both = solve_fedcof(rows, shrinkage=float(federation["gamma"]), between_class=True)
    assert absolute_difference(both.weight, federation["cof_btw_W"]) <= 1e-10


def test_between_class_scatter_alone_keeps_the_ridge(federation: Federation, solved: list) -> None:
    rows, gamma = federation.rows(), float(federation["gamma"])
    head = solve_fedcof(rows, shrinkage=gamma, between_class="only")
    counts, means = federation["N_c"].astype(float), federation["mu_c"]
    total = counts @ means
    # The scatter of class means about the mean of all samples, and that mean's own term.
    between = federation["G_btw"] + np.outer(total, total) / counts.sum()
    ridge = gamma * np.maximum(counts - 1, 0).sum()
    assert relative_difference(solved[0].matrix, between + ridge * np.eye(len(between))) <= 1e-12
    assert head.report.ridge_effective == pytest.approx(ridge)
    with pytest.raises(ValueError, match="shrinkage must be a number with between_class"):
        solve_fedcof(rows, shrinkage="auto", between_class="only")


def test_the_authors_heads_are_ours(federation: Federation, solved: list) -> None:
    head = solve_fedcof(federation.rows(), shrinkage=float(federation["gamma"]))
    assert relative_difference(solved[0].matrix, federation["ref_cof_G_f64"]) <= 1e-12
    assert relative_difference(solved[0].matrix, federation["ref_cof_G_f32"]) <= 1e-6
    assert relative_difference(solved[0].x.T, federation["ref_cof_Wraw_f64"]) <= 1e-10
    assert absolute_difference(head.weight, federation["ref_cof_W_f64"]) <= 1e-10
    assert absolute_difference(head.weight, federation["ref_cof_W_f32"]) <= 2e-5


def test_the_misprints_of_the_paper_are_not_reproduced(federation: Federation, solved: list) -> None:
    head = solve_fedcof(federation.rows(), shrinkage=float(federation["gamma"]))
    assert relative_difference(solved[0].matrix, federation["cof_G_literal_mug"]) > 1e-3
    if federation.num_clients > 2:
        assert relative_difference(solved[0].matrix, federation["cof_G_literalK"]) > 1e-4
        assert absolute_difference(head.weight, federation["cof_W_literalK"]) > 1e-4
    # That array is the formula with K for K_c, and not something else that differs.
    literal = fedcof(federation.rows(), float(federation["gamma"]), divisor=federation.num_clients)
    assert relative_difference(literal.gram, federation["cof_G_literalK"]) <= 1e-12


def test_golden_heads_of_several_means(federation: Federation, solved: list) -> None:
    head = solve_fedcof(federation.subset_rows(), shrinkage=float(federation["gamma"]))
    assert relative_difference(solved[0].matrix, federation["mm_G"]) <= 1e-12
    assert absolute_difference(head.weight, federation["mm_W"]) <= 1e-10


def test_two_phase_secure_aggregation_gives_our_matrix(solved: list) -> None:
    golden = Federation("secagg")
    solve_fedcof(golden.rows(), shrinkage=float(golden["gamma"]))
    assert relative_difference(solved[0].matrix, golden["G_plain"]) <= 1e-12
    assert relative_difference(solved[0].matrix, golden["G"]) <= 1e-12


def test_the_covariance_estimator_has_the_exact_bias_and_not_that_of_eq_22(solved: list) -> None:
    golden = load("bias")
    n, means, covariances = golden["n"], golden["mu_k"], golden["Sigma_k"]
    draws, rng = 20_000, np.random.default_rng(0)
    roots = np.linalg.cholesky(covariances / n[:, None, None])
    drawn = means + np.einsum("kij,nkj->nki", roots, rng.normal(size=(draws, len(n), 3)))
    # One class for each draw: G = sum_c (N_c - 1) Sigma_c + N mu mu^T averages the estimator over them.
    rows = ClassMeanRows(
        torch.arange(draws).repeat_interleave(len(n)),
        torch.from_numpy(np.tile(n, draws)),
        torch.from_numpy(drawn.reshape(-1, 3)),
        draws,
    )
    solve_fedcof(rows, shrinkage=0.0)
    total = rows.summed()
    gram = solved[0].matrix - total.num_examples * torch.outer(total.mean, total.mean)
    estimated = gram.numpy() / (draws * (n.sum() - 1))
    size = np.abs(golden["expected_exact"]).max()
    assert np.abs(estimated - golden["expected_exact"]).max() / size < 0.01  # Monte Carlo of 20,000 draws
    assert np.abs(estimated - golden["expected_eq22"]).max() / size > 0.02
    assert np.abs(golden["expected_mc"] - golden["expected_exact"]).max() / size < 5e-3
    assert absolute_difference(_exact_expectation(n, means, covariances), golden["expected_exact"]) <= 1e-12


def _exact_expectation(n: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    mean = (n[:, None] * means).sum(axis=0) / n.sum()
    spread = sum(size * np.outer(m - mean, m - mean) for size, m in zip(n, means, strict=True))
    within = sum((1 - size / n.sum()) * covariance for size, covariance in zip(n, covariances, strict=True))
    return (within + spread) / (len(n) - 1)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 60),
    gamma=st.sampled_from([0.01, 1.0, 30.0]),
    between_class=st.booleans(),
)
def test_one_product_is_the_literal_formula(seed: int, num_rows: int, gamma: float, between_class: bool) -> None:
    rows = _rows(seed, num_rows)
    if int(rows.counts.sum()) <= len(set(rows.class_ids.tolist())):  # N = C+: singular, and the literal way fails
        return
    head = solve_fedcof(rows, shrinkage=gamma, between_class=between_class)
    literal = fedcof(rows, gamma, between_class=between_class)
    assert absolute_difference(head.weight, unit_rows(literal.raw_weight)) <= 1e-9
    ridge = gamma * (int(rows.counts.sum()) - len(set(rows.class_ids.tolist())))
    assert head.report.ridge_effective == pytest.approx(ridge, rel=1e-12)


def _is_ncm(weight: Tensor, rows: ClassMeanRows) -> bool:
    return absolute_difference(weight, solve_ncm(rows.summed()).weight) <= 1e-12


def test_infinite_shrinkage_is_ncm_and_large_shrinkage_comes_close() -> None:
    rows = _rows(0)
    limit = solve_fedcof(rows, shrinkage=float("inf"))
    assert _is_ncm(limit.weight, rows)
    assert limit.report.ridge_effective == float("inf") and limit.report.notes
    assert absolute_difference(solve_fedcof(rows, shrinkage=1e12).weight, limit.weight) <= 1e-9


@pytest.mark.parametrize("ids", [[0, 1], [0, 0, 1]], ids=["one client", "few means for the dimension"])
def test_means_that_say_little_of_the_covariance_give_ncm_automatically(ids: list[int]) -> None:
    means = torch.rand(len(ids), 150, generator=torch.Generator().manual_seed(3))
    rows = ClassMeanRows(torch.tensor(ids), torch.arange(5, 5 + len(ids)), means, 3)
    head = solve_fedcof(rows, shrinkage="auto")
    assert _is_ncm(head.weight, rows)
    assert "infinite" in head.report.regulariser and any("FedNCM" in note for note in head.report.notes)
