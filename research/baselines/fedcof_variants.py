"""FedCOF's oracle (eq. 24) and noise on its counts (eq. 23), experiments of Goswami et al. 2025 that no method is.

The oracle has the clients' true covariances, which no client would send. The noise protects no client: the means carry
none, a class that a client lacks gets none either, and the server draws it after it has seen the counts.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead
from fedstats_app.heads.linear_head import add_to_diagonal, solve_positive_definite
from fedstats_app.heads.scatter import ClassTotals, mean_product, needed_gram, row_scatter, within_class_freedom
from fedstats_app.statistics import ClassMeanRows, ClientStatistics

CountNoise = Literal["uniform", "gaussian", "laplace"]
Covariance = Literal["full", "diagonal", "spherical"]


def draw_noise(kind: CountNoise, epsilon: float, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the (M,) float64 noise of (M,) counts n.

    Uniform in +-(1 - epsilon) n, normal of variance 1 / epsilon, or Laplace of scale 1 / epsilon, with epsilon in
    (0, 1): the smaller, the more noise.
    """
    if kind == "gaussian":
        return torch.randn(len(counts), dtype=torch.float64, generator=generator) / math.sqrt(epsilon)
    draw = 2.0 * torch.rand(len(counts), dtype=torch.float64, generator=generator) - 1.0
    if kind == "uniform":
        return draw * (1.0 - epsilon) * counts.to(torch.float64)
    return draw.sign() * torch.log1p(-draw.abs()).neg() / epsilon


def with_noise(rows: ClassMeanRows, noise: Tensor) -> ClassMeanRows:
    """Return the rows with noise (M,) added to their counts and the same means, without rows of counts up to 0.

    Counts are not rounded, so they are float64.
    """
    counts = rows.counts.to(torch.float64) + noise
    stay = counts > 0
    return ClassMeanRows(rows.class_ids[stay], counts[stay], rows.means[stay], rows.num_classes)


def solve_oracle(statistics: ClientStatistics, shrinkage: float, covariance: Covariance = "full") -> LinearHead:
    """Return the head of the clients' covariances: G W^T = B, rows normalised.

    G = sum_c (N_c - 1) Sigma_c + N mu mu^T,
    Sigma_c = 1 / (N_c - 1) [sum_k (n_kc - 1) S_kc + sum_k n_kc mu_kc mu_kc^T - N_c mu_c mu_c^T] + gamma I

    with S_kc the covariance of client k's samples of class c. Only the sum of all S_kc enters, which follows from all
    rows and the sum of all Gram matrices. With full covariances this is ridge regression without between-class scatter
    at lambda = gamma (N - C+).

    Parameters
    ----------
    statistics : ClientStatistics
        All clients' rows, one for each client and class, and the sum of their Gram matrices.
    shrinkage : float
        gamma >= 0, absolute.
    covariance : {"full", "diagonal", "spherical"}
        The part of each S_kc that is used: all, its diagonal, or its mean variance times I. The spread of the means
        about their class means stays whole.
    """
    summed, rows = statistics.summed(), statistics.rows
    scaled = rows.scaled_sums
    scatter = needed_gram(summed, "oracle") - scaled.T @ scaled
    if covariance != "full":
        variances = scatter.diagonal()
        scatter = torch.diag(variances if covariance == "diagonal" else variances.mean().expand_as(variances))
    totals = ClassTotals.of(rows)
    scatter = scatter + row_scatter(rows, totals, torch.ones_like(totals.counts))
    ridge = shrinkage * within_class_freedom(summed)
    solution = solve_positive_definite(add_to_diagonal(scatter + mean_product(summed), ridge), summed.class_sums.T)
    return LinearHead.of_rows(solution.x.T, summed.present, solution.report(f"gamma {shrinkage:.4g}", ridge))
