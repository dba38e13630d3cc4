"""FedCGS: Gaussian discriminant with one shared covariance.

Guan et al. 2025, "Capture global feature statistics for one-shot federated learning".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import HeadMap, check_regulariser, choose_ridge
from fedstats_app.heads.scatter import (
    class_mean_products,
    mean_product,
    needed_gram,
    sample_energy,
    within_class_freedom,
    within_class_spread,
)
from fedstats_app.statistics import FeatureStatistics

# With fewer draws than this share of the dimension, and a ridge above all that they say of the covariance, FedNCM was
# better on some data by more than half a point.
_FEW_DRAWS = 0.05


def solve_gaussian(
    stats: FeatureStatistics,
    *,
    covariance: Literal["total", "within"] = "total",
    shrinkage: float | Literal["auto"] = 0.0,
) -> LinearHead:
    """Return w_c = Sigma^-1 mu_c, b_c = log pi_c - mu_c^T Sigma^-1 mu_c / 2, pi_c the class priors.

    The bias is that of the derivation and of the authors' code; eq. 11 and 14 print Sigma for its inverse.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics with a Gram matrix.
    covariance : {"total", "within"}
        "total" about the global mean, (G - N mu mu^T) / (N - 1), as in the paper (eq. 7) and its code; "within" pooled
        about the class means, (G - sum_c N_c mu_c mu_c^T) / (N - C+), as the Gaussian derivation asks for.
    shrinkage : float or "auto"
        >= 0; shrinkage x tr(Sigma)/d is added to the diagonal. "auto": the best expected accuracy
        (:mod:`fedstats_app.heads.regularisation`).

    Returns
    -------
    LinearHead
        float64; an absent class has a zero row and bias -inf.

    Raises
    ------
    ValueError
        Without a Gram matrix, with an unknown covariance, or a negative or non-finite shrinkage.
    """
    gram = needed_gram(stats, "Gaussian")
    check_regulariser("shrinkage", shrinkage)
    if covariance == "total":
        sigma, freedom = gram - mean_product(stats), max(stats.num_examples - 1, 1)
    else:
        sigma, freedom = gram - class_mean_products(stats), max(within_class_freedom(stats), 1)
    sigma = sigma / freedom
    variance = float(sigma.trace()) / stats.feature_dim
    how, added = "", 0.0
    notes: tuple[str, ...] = ()
    if shrinkage == "auto":
        ridge, notes = _choose_ridge(stats, gram, covariance, freedom)
        how, added = ", auto", ridge / freedom
        shrinkage = added / variance if variance > 0.0 else 0.0
    # Multiplied again, so that the shrinkage reported gives the same bits; without any variance nothing would be added.
    added = shrinkage * variance or added
    class_means = stats.class_means
    # Sigma is what a subtraction leaves of the Gram matrix: its rounding is that of the Gram matrix, a sum of N terms.
    magnitude = float(gram.diagonal().amax()) / max(stats.num_examples, 1) ** 0.5
    solution = solve_positive_definite(add_to_diagonal(sigma, added), class_means.T, magnitude=magnitude)
    weight = solution.x.T.contiguous()  # (C, d)
    log_prior = torch.log(stats.class_counts.to(torch.float64) / max(stats.num_examples, 1))  # -inf when absent
    bias = log_prior - 0.5 * (weight * class_means).sum(dim=1)
    report = solution.report(f"shrinkage {shrinkage:.4g} ({covariance}{how})", added, notes=notes, shrinkage=shrinkage)
    return LinearHead(weight, bias, stats.present, report)


def _choose_ridge(
    stats: FeatureStatistics, gram: Tensor, covariance: str, freedom: int
) -> tuple[float, tuple[str, ...]]:
    """Return what to add to the diagonal of the scatter, which is the covariance times its draws, and notes."""
    spread = within_class_spread(stats, gram)
    if spread is None:
        return sample_energy(stats, gram) * freedom, ()
    ridge = choose_ridge(spread, discriminant(covariance, freedom), least=spread.residual)
    few = spread.freedom < _FEW_DRAWS * stats.feature_dim
    if not few or ridge <= float(spread.eigenvalues.amax()):
        return ridge, ()
    note = (
        f"{stats.num_examples} samples in {stats.feature_dim} dimensions say little of the covariance, on which this "
        "head rests: FedNCM may be better"
    )
    return ridge, (note,)


def discriminant(covariance: str, freedom: int) -> HeadMap:
    """Return how the head is made of the class means and the scatter within classes."""

    def head(products: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        transform = torch.eye(len(counts), dtype=products.dtype, device=products.device)
        if covariance == "total":
            # (S + B + lambda I)^-1 M = H M (I + (D - n n^T / N) P)^-1, B the scatter between classes.
            between = torch.diag(counts) - torch.outer(counts, counts) / counts.sum()
            transform = torch.linalg.inv(transform + between @ products)
        own = (products * transform.T).sum(dim=1)  # the diagonal of P T
        return freedom * transform, torch.log(counts / counts.sum()) - 0.5 * freedom * own

    return head
