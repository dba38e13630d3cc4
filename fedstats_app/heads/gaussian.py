"""FedCGS: Gaussian discriminant with one shared covariance.

Guan et al. 2025, "Capture global feature statistics for one-shot federated learning".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.heads.linear_system import add_to_diagonal, solve_positive_definite
from fedstats_app.statistics import FeatureStatistics


def solve_gaussian(
    stats: FeatureStatistics,
    *,
    covariance: Literal["total", "within"] = "total",
    shrinkage: float = 0.0,
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
    shrinkage : float
        >= 0; shrinkage x tr(Sigma)/d is added to the diagonal.

    Returns
    -------
    LinearHead
        float64; an absent class has a zero row and bias -inf.

    Raises
    ------
    ValueError
        Without a Gram matrix, with an unknown covariance, or a negative or non-finite shrinkage.
    """
    if stats.gram is None:
        raise ValueError("the Gaussian head needs statistics with a Gram matrix, got gram=None")
    if covariance not in ("total", "within"):
        raise ValueError(f'covariance must be "total" or "within", got {covariance!r}')
    if not 0.0 <= shrinkage < float("inf"):
        raise ValueError(f"shrinkage must be a finite number >= 0, got {shrinkage!r}")
    sigma = _total_covariance(stats, stats.gram) if covariance == "total" else _within_covariance(stats, stats.gram)
    added = shrinkage * float(sigma.trace()) / stats.feature_dim
    class_means = stats.class_means
    # Sigma is what a subtraction leaves of the Gram matrix: its rounding is that of the Gram matrix, a sum of N terms.
    magnitude = float(stats.gram.diagonal().amax()) / max(stats.num_examples, 1) ** 0.5
    solution = solve_positive_definite(add_to_diagonal(sigma, added), class_means.T, magnitude=magnitude)
    weight = solution.x.T.contiguous()  # (C, d)
    log_prior = torch.log(stats.class_counts.to(torch.float64) / max(stats.num_examples, 1))  # -inf when absent
    bias = log_prior - 0.5 * (weight * class_means).sum(dim=1)
    report = solution.report(f"shrinkage {shrinkage:.4g} ({covariance})", added, shrinkage=shrinkage)
    return LinearHead(weight, bias, stats.present, report)


def _total_covariance(stats: FeatureStatistics, gram: Tensor) -> Tensor:
    centred = gram - stats.num_examples * torch.outer(stats.mean, stats.mean)
    return centred / max(stats.num_examples - 1, 1)


def _within_covariance(stats: FeatureStatistics, gram: Tensor) -> Tensor:
    scaled = stats.class_means * stats.class_counts.to(torch.float64).sqrt().unsqueeze(1)
    freedom = stats.num_examples - int(stats.present.sum())
    return (gram - scaled.T @ scaled) / max(freedom, 1)
