"""FedCOF: class covariances estimated from the spread of client means (Goswami et al. 2025, "Covariances for free")."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, SolveReport, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import (
    Spread,
    check_regulariser,
    choose_ridge,
    class_means,
    with_between_class,
    without_between_class,
)
from fedstats_app.heads.scatter import ClassTotals, SummedRows
from fedstats_app.statistics import ClassMeanRows

# FedNCM's head replaces this one only if its expected accuracy is larger by at least this, or if the means have fewer
# degrees of freedom than this share of the dimension.
_CLEARLY_BETTER, _LEAST_FREEDOM = 0.01, 0.01
# Expected accuracies below this mean that the covariance is too large; how often it may be divided by 4.
_LEAST_ACCURACY, _MOST_DIVISIONS = 0.5, 6


def solve_fedcof(
    rows: ClassMeanRows | SummedRows,
    *,
    shrinkage: float | Literal["auto"] = 1.0,
    between_class: bool | Literal["only"] = False,
) -> LinearHead:
    """Return the head of estimated covariances: G_hat W^T = B, rows normalised.

    G_hat = sum_c (N_c - 1) Sigma_c + N mu mu^T,
    Sigma_c = 1 / (K_c - 1) sum_j n_j (mu_j - mu_c)(mu_j - mu_c)^T + gamma I

    where j runs over the K_c means received for class c (the paper prints K for K_c; a class with one mean has no
    scatter). Computed as one symmetric product: with a_c = (N_c - 1) / max(K_c - 1, 1), G_hat is X^T X + gamma
    sum_c (N_c - 1) I for X with one row sqrt(a_c n_j) (mu_j - mu_c) per mean and one row sqrt(N) mu.

    Parameters
    ----------
    rows : ClassMeanRows or SummedRows
        All clients' rows, in a fixed order, or their sums from secure sums. Memory beyond them: d x d and a block of
        rows.
    shrinkage : float or "auto"
        gamma >= 0, absolute, as in the paper. "auto": the best expected accuracy
        (:mod:`fedstats_app.heads.regularisation`). Infinity gives the limit, which is FedNCM's head; so does "auto" if
        the means do not determine a covariance (one client, or few means for the dimension), or if FedNCM's head has
        the better expected accuracy. Sites that differ make means scatter more than their samples do. The server
        knows no other scatter, so it takes this for granted where it expects no head to be right in half of the cases.
    between_class : bool or "only"
        Ablations. True adds the between-class scatter (sum_c N_c mu_c mu_c^T in place of N mu mu^T). "only" leaves the
        scatter of the means about their class means out besides, but not gamma; it needs a number for that.

    Returns
    -------
    LinearHead
        float64 unit rows, zero for absent classes; no bias.

    Raises
    ------
    ValueError
        If shrinkage is negative or not a number, or "auto" with between-class scatter only.
    """
    check_regulariser("shrinkage", shrinkage, infinite=True)
    if between_class == "only" and shrinkage == "auto":
        raise ValueError('shrinkage must be a number with between_class="only", got "auto"')
    totals, scatter = rows if isinstance(rows, SummedRows) else SummedRows.of(rows)
    samples = float((totals.counts - 1).clamp(min=0).sum())
    how = ""
    if shrinkage == "auto":
        shrinkage, how = _choose_shrinkage(totals, scatter, samples, bool(between_class)), " (auto)"
    present = totals.counts > 0
    ridge = float(shrinkage) * samples if shrinkage else 0.0
    if math.isnan(ridge) or math.isinf(ridge):
        return _limit(totals, present, how)
    means = _mean_term(totals, bool(between_class))
    gram = means if between_class == "only" else scatter + means
    solution = solve_positive_definite(add_to_diagonal(gram, ridge), totals.sums.T)
    report = solution.report(f"gamma {shrinkage:.4g}{how}", ridge, shrinkage=float(shrinkage))
    return LinearHead.of_rows(solution.x.T, present, report)


def _choose_shrinkage(totals: ClassTotals, scatter: Tensor, samples: float, between_class: bool) -> float:
    """Return gamma; infinity if the means do not determine a covariance, or FedNCM's head is expected to be better."""
    several = totals.num_means > 1
    spread = Spread.of(
        scatter,
        totals.means,
        totals.counts,
        weight=float((totals.counts - 1)[several].clamp(min=0).sum()),
        freedom=totals.freedom,
    )
    if spread is None or totals.freedom < _LEAST_FREEDOM * totals.sums.shape[1]:
        return math.inf
    head = with_between_class if between_class else without_between_class
    for _ in range(_MOST_DIVISIONS):
        ridge = choose_ridge(spread, head)
        expected = spread.expected_accuracy(ridge, head)
        if expected >= _LEAST_ACCURACY:
            ncm = spread.expected_accuracy(math.inf, class_means)
            return math.inf if ncm > expected + _CLEARLY_BETTER else ridge / samples
        # Means may differ by site, which only enlarges the covariance; the order of ridges needs no true size.
        spread = replace(spread, weight=4.0 * spread.weight)
    return math.inf


def _mean_term(totals: ClassTotals, between_class: bool) -> Tensor:
    """Return N mu mu^T, or sum_c N_c mu_c mu_c^T with the between-class scatter."""
    if between_class:
        return totals.mean_products()
    num_examples = totals.counts.sum().clamp(min=1e-300)
    total = totals.sums.sum(dim=0)
    return torch.outer(total, total) / num_examples


def _limit(totals: ClassTotals, present: Tensor, how: str) -> LinearHead:
    """Return the head for gamma -> infinity: the direction of the class sums, which is FedNCM's."""
    number, known = int(totals.num_means.sum()), f"{totals.freedom} draws in {totals.sums.shape[1]} dimensions"
    report = SolveReport(
        regulariser=f"gamma infinite{how}",
        parameters={"shrinkage": math.inf},
        ridge_effective=math.inf,
        notes=(
            f"{number} means of {int(present.sum())} classes are too few to estimate the covariance ({known}): this is "
            "the limit of infinite shrinkage, FedNCM's head",
        ),
    )
    return LinearHead.of_rows(totals.means, present, report)
