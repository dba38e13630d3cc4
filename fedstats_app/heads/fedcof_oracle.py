"""FedCOF's oracle: the clients' true covariances in place of those estimated from their means.

Goswami et al. 2025, "Covariances for free", eq. 24, with its ablations of diagonal and spherical covariances.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.class_scatter import mean_product, needed_gram, sample_energy, within_class_freedom
from fedstats_app.heads.linear_head import LinearHead, normalize_rows
from fedstats_app.heads.linear_system import add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import Spread, choose_ridge, without_between_class
from fedstats_app.heads.row_scatter import ClassTotals, row_scatter
from fedstats_app.statistics import ClientStatistics

Covariance = Literal["full", "diagonal", "spherical"]


def solve_oracle(
    statistics: ClientStatistics, *, covariance: Covariance = "full", shrinkage: float | Literal["auto"] = 1.0
) -> LinearHead:
    """Return the head of the clients' covariances: G W^T = B, rows normalised.

    G = sum_c (N_c - 1) Sigma_c + N mu mu^T,
    Sigma_c = 1 / (N_c - 1) [sum_k (n_kc - 1) S_kc + sum_k n_kc mu_kc mu_kc^T - N_c mu_c mu_c^T] + gamma I

    with S_kc the covariance of client k's samples of class c. The paper's clients send every S_kc; only the sum of them
    over clients and classes enters, and that follows from all rows and the sum of all Gram matrices. It is linear in
    S_kc, so what the ablations leave of each S_kc they leave of the sum.

    Parameters
    ----------
    statistics : ClientStatistics
        All clients' rows, one for each client and class, and the sum of their Gram matrices.
    covariance : {"full", "diagonal", "spherical"}
        What is left of each S_kc: all, its diagonal, or its mean variance times I. The spread of the means about their
        class means stays whole.
    shrinkage : float or "auto"
        gamma >= 0, absolute; "auto": the best expected accuracy (:mod:`fedstats_app.heads.regularisation`).

    Returns
    -------
    LinearHead
        float64 unit rows, zero for absent classes; no bias.

    Raises
    ------
    ValueError
        Without a Gram matrix, for another covariance, or if shrinkage is negative, infinite or not a number.
    """
    if covariance not in ("full", "diagonal", "spherical"):
        raise ValueError(f"covariance must be full, diagonal or spherical, got {covariance!r}")
    if shrinkage != "auto" and (isinstance(shrinkage, str) or not 0.0 <= shrinkage < math.inf):
        raise ValueError(f'shrinkage must be a finite number >= 0 or "auto", got {shrinkage!r}')
    summed = statistics.summed()
    totals, freedom = ClassTotals.of(statistics.rows), within_class_freedom(summed)
    scatter = _reduced(_within_rows(needed_gram(summed, "oracle"), statistics), covariance)
    scatter = scatter + row_scatter(statistics.rows, totals, torch.ones_like(totals.counts))
    if shrinkage == "auto":
        spread = Spread.of(scatter, totals.means, totals.counts, float(freedom), freedom)
        energy = sample_energy(summed, needed_gram(summed, "oracle"))
        ridge = energy if spread is None else choose_ridge(spread, without_between_class, least=spread.residual)
        gamma, how = ridge / max(freedom, 1), " (auto)"
    else:
        ridge, gamma, how = shrinkage * freedom, float(shrinkage), ""
    gram = scatter + mean_product(summed)
    solution = solve_positive_definite(add_to_diagonal(gram, ridge), summed.class_sums.T)
    weight, _ = normalize_rows(solution.x.T)
    kind = "" if covariance == "full" else f", {covariance} covariances"
    report = solution.report(f"gamma {gamma:.4g}{how}{kind}", ridge, shrinkage=gamma)
    return LinearHead(weight.contiguous(), torch.zeros_like(weight[:, 0]), summed.present, report)


def _within_rows(gram: Tensor, statistics: ClientStatistics) -> Tensor:
    """Return sum_kc (n_kc - 1) S_kc, the scatter of samples about the means of their rows, (d, d)."""
    rows = statistics.rows
    scaled = rows.class_sums.to(torch.float64) / rows.counts.to(torch.float64).sqrt().unsqueeze(1)
    return gram - scaled.T @ scaled


def _reduced(scatter: Tensor, covariance: Covariance) -> Tensor:
    if covariance == "full":
        return scatter
    variances = scatter.diagonal()
    return torch.diag(variances if covariance == "diagonal" else variances.mean().expand_as(variances))
