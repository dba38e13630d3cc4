"""FedRoot: statistics completed from rows and truncated factors of the scatter; ours, unpublished.

It combines FedCOF's rows and pooled covariance (Goswami et al. 2025), a truncated singular value decomposition of each
client's scatter, and shrinkage of the pooled covariance towards the identity, in the manner of Ledoit and Wolf.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.gaussian import solve_gaussian
from fedstats_app.heads.linear_head import LinearHead, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.heads.scatter import ClassTotals, class_mean_products, needed_gram, row_scatter, within_class_freedom
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.statistics.accumulation import mirror_upper


def complete(rows: ClassMeanRows, scatter: Tensor, left_out: float, *, shaped: bool = True) -> FeatureStatistics:
    """Return class counts, class sums and the Gram matrix completed from what clients sent.

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
        False: w = 0, with which the completions of single clients add up to that of all clients.
    """
    dim = rows.feature_dim
    # In blocks of rows, as FedCOF's: about 0 instead of the class means it is the sum of n_j mu_j mu_j^T.
    totals = ClassTotals.of(rows)
    about_zero = totals._replace(means=torch.zeros_like(totals.means))
    products = row_scatter(rows, about_zero, torch.ones_like(totals.counts))
    gram = products + scatter
    if left_out:
        # Only a shape, so cancellation does no harm; a second product of all rows would take as long as the first.
        spread = products - totals.mean_products()
        trace = float(spread.trace())
        known = shaped and trace > 1e-12 * float(products.trace())
        weight = shape_weight(totals.freedom, dim) if known else 0.0
        if weight:
            gram.add_(spread, alpha=left_out * weight / trace)
        gram.diagonal().add_(left_out * (1.0 - weight) / dim)
    return rows.summed(mirror_upper(gram))


def shape_weight(freedom: int, dim: int) -> float:
    """Return w = q / (q + d / 2), the weight of the rows' covariance, with q degrees of freedom, in the shape."""
    return freedom / (freedom + dim / 2)


def solve_completed(
    statistics: FeatureStatistics,
    *,
    head: Literal["both", "ridge", "within"] = "both",
    ridge_lambda: float | Literal["auto"] = "auto",
    shrinkage: float | Literal["auto"] = "auto",
) -> LinearHead:
    """Return the head of completed statistics.

    Parameters
    ----------
    statistics : FeatureStatistics
        With a Gram matrix.
    head : {"both", "ridge", "within"}
        :func:`solve_ridge`; :func:`solve_gaussian` with the covariance within classes; or the first and twice the
        second.
    ridge_lambda, shrinkage : float or "auto"
        Of the ridge, and of both; of the Gaussian alone.

    Raises
    ------
    ValueError
        With another head, or as those two.
    """
    if head == "within":
        return solve_gaussian(statistics, covariance="within", shrinkage=shrinkage)
    ridge = solve_ridge(statistics, ridge_lambda=ridge_lambda)
    return ridge if head == "ridge" else _with_gaussian(ridge, statistics)


def _with_gaussian(ridge: LinearHead, statistics: FeatureStatistics) -> LinearHead:
    """Add twice the Gaussian head at the same lambda, both scaled alike: their errors differ, and it errs less.

    A head is divided by the lead of a class mean's own class over the mean of all classes. The Gaussian's bias
    contains half the squared length of a class mean, to which the noise of a mean of n samples adds h / n with
    h = tr(S (S + lambda I)^-1). This is subtracted, since rare classes would lose by it.
    """
    present, gram = statistics.present, needed_gram(statistics, "FedRoot")
    counts, means = statistics.class_counts[present].to(torch.float64), statistics.class_means[present]
    scatter, freedom = gram - class_mean_products(statistics), within_class_freedom(statistics)
    if freedom < 1 or float(scatter.trace()) <= 1e-12 * float(gram.trace()):
        return ridge
    system = add_to_diagonal(scatter, ridge.report.parameters["ridge_lambda"])
    solved = solve_positive_definite(system, torch.cat([means.T, scatter], dim=1), magnitude=float(gram.abs().amax())).x
    directions, noise = freedom * solved[:, : len(means)].T, float(solved[:, len(means) :].trace())
    lengths = (directions * means).sum(dim=1) - noise / counts
    gaussian = torch.log(counts / counts.sum()) - lengths / 2.0
    weight, bias = torch.zeros_like(ridge.weight), torch.zeros_like(ridge.bias)
    for times, rows, offsets in ((1.0, ridge.weight[present], ridge.bias[present]), (2.0, directions, gaussian)):
        scores = means @ rows.T + offsets
        lead = float((scores.diagonal() - scores.mean(dim=1)) @ counts / counts.sum())
        if lead <= 1e-12 * float(scores.abs().amax()):
            return ridge
        weight[present] += times * rows / lead
        bias[present] += times * offsets / lead
    return LinearHead(weight, bias, present, ridge.report)
