"""FedCOF: class covariances estimated from the spread of client means (Goswami et al. 2025, "Covariances for free")."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, SolveReport, normalize_rows
from fedstats_app.heads.linear_system import add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import oas_shrinkage
from fedstats_app.statistics import ClassMeanRows
from fedstats_app.statistics.accumulation import ROWS_PER_BLOCK, add_in_blocks, mirror_upper

# Columns per tile of the symmetric product: only tiles on and above the diagonal are computed.
COLUMNS_PER_TILE = 128


def solve_fedcof(
    rows: ClassMeanRows, *, shrinkage: float | Literal["auto"] = 1.0, between_class: bool = False
) -> LinearHead:
    """Return the head of estimated covariances: G_hat W^T = B, rows normalised.

    G_hat = sum_c (N_c - 1) Sigma_c + N mu mu^T,
    Sigma_c = 1 / (K_c - 1) sum_j n_j (mu_j - mu_c)(mu_j - mu_c)^T + gamma I

    where j runs over the K_c means received for class c (the paper prints K for K_c; a class with one mean has no
    scatter). Computed as one symmetric product: with a_c = (N_c - 1) / max(K_c - 1, 1), G_hat is X^T X + gamma
    sum_c (N_c - 1) I for X with one row sqrt(a_c n_j) (mu_j - mu_c) per mean and one row sqrt(N) mu.

    Parameters
    ----------
    rows : ClassMeanRows
        All clients' rows, in a fixed order. Memory beyond them: d x d and a block of rows.
    shrinkage : float or "auto"
        gamma >= 0, absolute, as in the paper. "auto": Oracle Approximating Shrinkage of the pooled scatter of the
        means. Infinity, and "auto" where the means say nothing (one client), give the limit, which is FedNCM's head.
    between_class : bool
        Ablation: add the between-class scatter (sum_c N_c mu_c mu_c^T in place of N mu mu^T).

    Returns
    -------
    LinearHead
        float64 unit rows, zero for absent classes; no bias.

    Raises
    ------
    ValueError
        If shrinkage is negative or not a number.
    """
    if shrinkage != "auto" and (isinstance(shrinkage, str) or not shrinkage >= 0.0):
        raise ValueError(f'shrinkage must be a number >= 0 or "auto", got {shrinkage!r}')
    totals = _ClassTotals.of(rows)
    how = ""
    if shrinkage == "auto":
        freedom = int((totals.num_means - 1).clamp(min=0).sum())
        scatter = _scatter(rows, totals, torch.ones_like(totals.counts)) if freedom else rows.class_sums.new_zeros(1, 1)
        shrinkage, how = oas_shrinkage(scatter, freedom), " (OAS)"
    present = totals.counts > 0
    ridge = float(shrinkage) * float((totals.counts - 1).clamp(min=0).sum()) if shrinkage else 0.0
    if math.isnan(ridge) or math.isinf(ridge):
        return _limit(totals, present, how)
    weights = (totals.counts - 1).clamp(min=0) / (totals.num_means - 1).clamp(min=1)
    gram = _scatter(rows, totals, weights) + _mean_term(totals, between_class)
    solution = solve_positive_definite(add_to_diagonal(gram, ridge), totals.sums.T)
    weight, _ = normalize_rows(solution.x.T)
    report = solution.report(f"gamma {shrinkage:.4g}{how}", ridge, shrinkage=float(shrinkage))
    return LinearHead(weight.contiguous(), torch.zeros_like(weight[:, 0]), present, report)


class _ClassTotals(NamedTuple):
    """counts N_c (C,), number of means K_c (C,), sums S_c (C, d), means mu_c (C, d); all float64."""

    counts: Tensor
    num_means: Tensor
    sums: Tensor
    means: Tensor

    @classmethod
    def of(cls, rows: ClassMeanRows) -> _ClassTotals:
        counts = torch.zeros(rows.num_classes, dtype=torch.float64, device=rows.class_sums.device)
        counts.index_add_(0, rows.class_ids, rows.counts.to(torch.float64))
        num_means = torch.bincount(rows.class_ids, minlength=rows.num_classes).to(torch.float64)
        sums = counts.new_zeros(rows.num_classes, rows.feature_dim)
        add_in_blocks(sums, None, rows.class_sums, rows.class_ids)
        divisor = torch.where(counts > 0, counts, torch.ones_like(counts))
        return cls(counts, num_means, sums, sums / divisor.unsqueeze(1))


def _scatter(rows: ClassMeanRows, totals: _ClassTotals, class_weights: Tensor) -> Tensor:
    """Return sum_j w_c n_j (mu_j - mu_c)(mu_j - mu_c)^T, (d, d) float64.

    One symmetric product of the scaled, centred rows, in blocks of rows and tiles of columns. Centring comes first:
    subtracting the class terms afterwards would cancel.
    """
    dim, counts = rows.feature_dim, rows.counts.to(torch.float64).unsqueeze(1)
    scale = (class_weights[rows.class_ids].unsqueeze(1) * counts).sqrt()
    gram = totals.sums.new_zeros(dim, dim)
    tiles = [slice(start, min(start + COLUMNS_PER_TILE, dim)) for start in range(0, dim, COLUMNS_PER_TILE)]
    buffer = gram.new_empty(min(ROWS_PER_BLOCK, len(rows)), dim)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        # In place, in one buffer: new tensors for each step cost a third of the whole product in fresh memory pages.
        scaled = buffer[: len(rows.class_ids[block])].copy_(rows.class_sums[block])
        scaled.div_(counts[block]).sub_(totals.means[rows.class_ids[block]]).mul_(scale[block])
        for tile in tiles:
            gram[tile, tile.start :].addmm_(scaled[:, tile].T, scaled[:, tile.start :])
    return mirror_upper(gram)


def _mean_term(totals: _ClassTotals, between_class: bool) -> Tensor:
    """Return N mu mu^T, or sum_c N_c mu_c mu_c^T with the between-class scatter."""
    if between_class:
        scaled = totals.means * totals.counts.sqrt().unsqueeze(1)
        return scaled.T @ scaled
    num_examples = totals.counts.sum().clamp(min=1e-300)
    total = totals.sums.sum(dim=0)
    return torch.outer(total, total) / num_examples


def _limit(totals: _ClassTotals, present: Tensor, how: str) -> LinearHead:
    """Return the head for gamma -> infinity: the direction of the class sums, which is FedNCM's."""
    weight, _ = normalize_rows(totals.means)
    report = SolveReport(
        regulariser=f"gamma infinite{how}",
        parameters={"shrinkage": math.inf},
        ridge_effective=math.inf,
        notes=("the means say nothing of the covariance: this is the limit of infinite shrinkage, FedNCM's head",),
    )
    return LinearHead(weight, torch.zeros_like(weight[:, 0]), present, report)
