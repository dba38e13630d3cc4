"""FedCGS: Gaussian discriminant with one shared covariance.

Guan et al. 2025, "Capture global feature statistics for one-shot federated learning".
"""

from __future__ import annotations

from typing import Literal

import torch

from fedstats_app.heads.linear_head import LinearHead, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import check_regulariser, likeliest_ridge
from fedstats_app.heads.scatter import (
    class_mean_products,
    mean_product,
    needed_gram,
    sample_energy,
    within_class_freedom,
)
from fedstats_app.statistics import FeatureStatistics

# With fewer draws than this share of the dimension, and a ridge above this share of the largest eigenvalue, little of
# the covariance is left in the head, and FedNCM may be better.
_FEW_DRAWS, _LARGE_RIDGE = 0.05, 0.25


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
        >= 0; shrinkage x tr(Sigma)/d is added to the diagonal. "auto": the largest evidence
        (:func:`fedstats_app.heads.regularisation.likeliest_ridge`).

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
        likeliest = likeliest_ridge(stats)
        how, added = ", auto", sample_energy(stats, gram) if likeliest is None else likeliest / freedom
        shrinkage = added / variance if variance > 0.0 else 0.0
        few = likeliest is not None and within_class_freedom(stats) < _FEW_DRAWS * stats.feature_dim
        if few and added > _LARGE_RIDGE * float(torch.linalg.eigvalsh(sigma)[-1]):
            few_draws = f"{stats.num_examples} samples in {stats.feature_dim} dimensions are few for this head's"
            notes = (f"{few_draws} covariance: FedNCM may be better",)
    # Multiplied again, so that the reported shrinkage gives the same bits; without any variance nothing would be added.
    added = shrinkage * variance or added
    class_means = stats.class_means
    # Sigma is a difference of the Gram matrix, so its rounding errors are those of the Gram matrix, a sum of N terms.
    magnitude = float(gram.diagonal().amax()) / max(stats.num_examples, 1) ** 0.5
    solution = solve_positive_definite(add_to_diagonal(sigma, added), class_means.T, magnitude=magnitude)
    weight = solution.x.T.contiguous()  # (C, d)
    log_prior = torch.log(stats.class_counts.to(torch.float64) / max(stats.num_examples, 1))  # -inf when absent
    bias = log_prior - 0.5 * (weight * class_means).sum(dim=1)
    report = solution.report(f"shrinkage {shrinkage:.4g} ({covariance}{how})", added, notes=notes, shrinkage=shrinkage)
    return LinearHead(weight, bias, stats.present, report)
