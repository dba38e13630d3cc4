"""FedRoot: statistics completed from rows and truncated factors of the scatter; ours, unpublished.

It combines FedCOF's rows and pooled covariance (Goswami et al. 2025), a truncated singular value decomposition of each
client's scatter, and shrinkage of the pooled covariance towards the identity, in the manner of Ledoit and Wolf.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.gaussian import solve_gaussian
from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.heads.scatter import ClassTotals, row_scatter
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.statistics.accumulation import mirror_upper


def solve_fedroot(
    rows: ClassMeanRows,
    scatter: Tensor,
    left_out: float,
    *,
    head: Literal["ridge", "within"] = "ridge",
    ridge_lambda: float | Literal["auto"] = "auto",
    shrinkage: float | Literal["auto"] = "auto",
) -> LinearHead:
    """Return the head of the statistics that :func:`complete` makes.

    Parameters
    ----------
    rows, scatter, left_out
        As :func:`complete`.
    head, ridge_lambda, shrinkage
        As :func:`solve_completed`.

    Returns
    -------
    LinearHead
        float64; rows of absent classes are zero.

    Raises
    ------
    ValueError
        As :func:`complete` and :func:`solve_completed`.
    """
    completed = complete(rows, scatter, left_out)
    return solve_completed(completed, head=head, ridge_lambda=ridge_lambda, shrinkage=shrinkage)


def complete(rows: ClassMeanRows, scatter: Tensor, left_out: float, *, shaped: bool = True) -> FeatureStatistics:
    """Return class counts, class sums and the Gram matrix as far as clients told it.

    G_hat = sum_j n_j mu_j mu_j^T + scatter + left_out A,    A = w S / tr(S) + (1 - w) I / d

    where j runs over all rows and S is the pooled covariance that FedCOF estimates from the spread of the means about
    their class means, with q degrees of freedom. The energy left out takes the shape of S as far as that is known
    (:func:`shape_weight`). tr(G_hat) is that of the Gram matrix, and without energy left out G_hat is the Gram matrix.

    Parameters
    ----------
    rows : ClassMeanRows
        All clients' rows, with integer counts.
    scatter : Tensor
        (d, d) float64, the sum of all clients' F^T F.
    left_out : float
        The sum of the energies that their factors leave out, at least 0.
    shaped : bool
        False: w = 0. What clients are completed to one by one adds up to what all are together then.
    """
    dim = rows.feature_dim
    # In blocks of rows, as FedCOF's: about 0 instead of the class means it is the sum of n_j mu_j mu_j^T.
    totals = ClassTotals.of(rows)
    about_zero = totals._replace(means=torch.zeros_like(totals.means))
    ones = torch.ones_like(totals.counts)
    gram = row_scatter(rows, about_zero, ones) + scatter
    if left_out:
        freedom = totals.freedom if shaped else 0
        spread = row_scatter(rows, totals, ones) if freedom else torch.zeros_like(gram)
        trace = float(spread.trace())
        weight = shape_weight(freedom, dim) if trace > 0.0 else 0.0
        if weight:
            gram.add_(spread, alpha=left_out * weight / trace)
        gram.diagonal().add_(left_out * (1.0 - weight) / dim)
    return rows.summed(mirror_upper(gram))


def shape_weight(freedom: int, dim: int) -> float:
    """Return w = q / (q + d / 2): how far the rows' covariance, of q degrees of freedom, is taken for the shape."""
    return freedom / (freedom + dim / 2)


def solve_completed(
    statistics: FeatureStatistics,
    *,
    head: Literal["ridge", "within"] = "ridge",
    ridge_lambda: float | Literal["auto"] = "auto",
    shrinkage: float | Literal["auto"] = "auto",
) -> LinearHead:
    """Return the head of completed statistics.

    Parameters
    ----------
    statistics : FeatureStatistics
        With a Gram matrix.
    head : {"ridge", "within"}
        :func:`solve_ridge`, or :func:`solve_gaussian` with the covariance within classes.
    ridge_lambda, shrinkage : float or "auto"
        Of the ridge and of the Gaussian.

    Raises
    ------
    ValueError
        With another head, or as those two.
    """
    if head == "ridge":
        return solve_ridge(statistics, ridge_lambda=ridge_lambda)
    return solve_gaussian(statistics, covariance="within", shrinkage=shrinkage)
