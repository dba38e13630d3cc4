"""Fed3R: ridge regression on one-hot labels, with and without the between-class scatter.

Fani et al. 2024, "Accelerating heterogeneous federated learning with closed-form classifiers".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, Solution, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import check_regulariser, likeliest_ridge
from fedstats_app.heads.scatter import class_mean_products, mean_product, needed_gram, sample_energy
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.accumulation import normalize_rows


def solve_ridge(
    stats: FeatureStatistics,
    *,
    ridge_lambda: float | Literal["auto"] = 0.01,
    between_class: bool = True,
    fit_bias: bool = False,
    normalize: bool = True,
    solver: Literal["cholesky", "pinv32"] = "cholesky",
) -> LinearHead:
    """Return the ridge head (G + lambda I) W^T = B with G = F^T F, B = F^T Y.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics with a Gram matrix.
    ridge_lambda : float or "auto"
        lambda >= 0, absolute. "auto": the largest evidence
        (:func:`fedstats_app.heads.regularisation.likeliest_ridge`).
    between_class : bool
        False leaves the between-class scatter out of G:
        G - (B D^-1 B^T - N mu mu^T), D the class counts. At lambda = gamma (N - C+) this is exactly FedCOF with the
        clients' true covariances (Goswami et al. 2025, eq. 24).
    fit_bias : bool
        Append a constant feature 1, regularised like the others, as Fed3R's official code does; its weight becomes
        the bias. Only with between_class.
    normalize : bool
        Divide each row (and its bias) by the norm of the row's weights; a zero row stays zero.
    solver : {"cholesky", "pinv32"}
        "cholesky": float64. "pinv32": float32 pseudo-inverse of G + lambda I with torch's default cut-off, which the
        papers' reported numbers rest on; only to reproduce those.

    Returns
    -------
    LinearHead
        float64; rows of absent classes are zero.

    Raises
    ------
    ValueError
        Without a Gram matrix, with a negative or non-finite lambda, an unknown solver, or with fit_bias and without
        between_class.
    """
    sums = needed_gram(stats, "ridge")
    if fit_bias and not between_class:
        raise ValueError("fit_bias is defined with between-class scatter only, got between_class=False")
    gram, rhs = _with_constant_feature(stats, sums) if fit_bias else (sums, stats.class_sums.T)
    if not between_class:
        gram = sums - class_mean_products(stats) + mean_product(stats)
    check_regulariser("ridge_lambda", ridge_lambda)
    if ridge_lambda == "auto":
        likeliest = likeliest_ridge(stats)
        chosen, how = (sample_energy(stats, sums), " (no spread)") if likeliest is None else (likeliest, " (auto)")
    else:
        chosen, how = float(ridge_lambda), ""
    if solver == "pinv32":
        solution = _solve_pinv32(gram, rhs, chosen)
    else:
        magnitude = float((gram if between_class else sums).diagonal().amax())
        solution = solve_positive_definite(add_to_diagonal(gram, chosen), rhs, magnitude=magnitude)
    weight = solution.x.T  # (C, d) or (C, d + 1)
    bias = weight[:, -1].clone() if fit_bias else torch.zeros_like(weight[:, 0])
    weight = weight[:, :-1] if fit_bias else weight
    if normalize:
        weight, norm = normalize_rows(weight)
        bias = bias / norm
    report = solution.report(f"lambda {chosen:.4g}{how}", chosen, ridge_lambda=chosen)
    return LinearHead(weight.contiguous(), bias, stats.present, report)


def _with_constant_feature(stats: FeatureStatistics, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return G and B of the features with a constant 1 appended."""
    total = stats.class_sums.sum(dim=0, keepdim=True)  # (1, d)
    corner = total.new_tensor([[float(stats.num_examples)]])
    gram = torch.cat([torch.cat([gram, total.T], dim=1), torch.cat([total, corner], dim=1)])
    return gram, torch.cat([stats.class_sums, stats.class_counts.unsqueeze(1).to(torch.float64)], dim=1).T


def _solve_pinv32(gram: Tensor, rhs: Tensor, ridge_lambda: float) -> Solution:
    matrix = add_to_diagonal(gram.float(), ridge_lambda)
    singular = torch.linalg.svdvals(matrix)
    kept = singular > len(matrix) * torch.finfo(torch.float32).eps * singular[0]
    x = (torch.linalg.pinv(matrix) @ rhs.float()).to(torch.float64)
    condition = float(singular[0]) / float(singular[kept][-1]) if bool(kept.any()) else 1.0
    return Solution(x, condition, int(kept.sum()))
