"""Choosing the regulariser from the statistics alone: no extra message and no test data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Candidates from 1e-7 to 3 times the mean eigenvalue, 10 per decade.
GCV_LOWEST, GCV_HIGHEST, GCV_PER_DECADE = 1e-7, 3.0, 10


def gcv_ridge_lambda(gram: Tensor, rhs: Tensor, num_examples: int) -> float:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath & Wahba 1979) for one-hot targets.

    With ``gram = V diag(e) V^T`` one eigendecomposition serves all candidates l: residual sum of squares
    ``N - sum_i b_i (2 / (e_i + l) - e_i / (e_i + l)^2)``, where b_i is the squared norm of row i of ``V^T rhs``, and
    effective degrees of freedom ``h(l) = sum_i e_i / (e_i + l)``; the score is ``RSS / (N (1 - h / N)^2)``.

    Parameters
    ----------
    gram : Tensor
        (d, d) float64, F^T F.
    rhs : Tensor
        (d, C) float64, F^T Y.
    num_examples : int
        N.

    Returns
    -------
    float
        The ridge; 1.0 if the Gram matrix is zero, where any value gives the zero head.
    """
    eigenvalues, vectors = torch.linalg.eigh(gram)
    eigenvalues = eigenvalues.clamp(min=0.0)
    mean_eigenvalue = float(eigenvalues.mean())
    if mean_eigenvalue == 0.0:
        return 1.0
    steps = round(GCV_PER_DECADE * math.log10(GCV_HIGHEST / GCV_LOWEST)) + 1
    candidates = mean_eigenvalue * torch.logspace(
        math.log10(GCV_LOWEST), math.log10(GCV_HIGHEST), steps, dtype=torch.float64, device=gram.device
    )
    energy = (vectors.T @ rhs).square().sum(dim=1)  # (d,)
    shifted = eigenvalues + candidates.unsqueeze(1)  # (steps, d)
    residual = num_examples - (energy * (2.0 / shifted - eigenvalues / shifted.square())).sum(dim=1)
    freedom = (eigenvalues / shifted).sum(dim=1)
    # Rounding can push a residual of (nearly) zero below it, and h above N where d > N: such a candidate
    # interpolates the data, and its score is meaningless, not small.
    slack = 1.0 - freedom / num_examples
    floor = num_examples * 1e-12
    score = residual.clamp(min=floor) / slack.square()
    score = torch.where(slack > 1e-8, score, torch.full_like(score, torch.inf))
    return float(candidates[int(score.argmin())])


def oas_shrinkage(scatter: Tensor, degrees_of_freedom: int) -> float:
    """Return how much of the average variance to add to the diagonal: Oracle Approximating Shrinkage.

    Chen, Wiesel, Eldar & Hero 2010, eq. 23, for a covariance ``S = scatter / q``:
    rho = min(1, ((1 - 2/d) tr(S^2) + tr(S)^2) / ((q + 1 - 2/d) (tr(S^2) - tr(S)^2 / d))) and the shrunk covariance
    (1 - rho) S + rho tr(S)/d I is proportional to S + gamma I with gamma = rho / (1 - rho) tr(S)/d.

    Parameters
    ----------
    scatter : Tensor
        (d, d) float64, sum of q outer products of centred draws.
    degrees_of_freedom : int
        q.

    Returns
    -------
    float
        gamma; infinity where the draws say nothing of the covariance (q = 0, or no variance at all).
    """
    if degrees_of_freedom < 1:
        return math.inf
    dim = len(scatter)
    covariance = scatter / degrees_of_freedom
    trace = float(covariance.trace())
    trace_of_square = float(covariance.square().sum())
    spread = trace_of_square - trace**2 / dim
    if trace <= 0.0 or spread <= 0.0:
        return math.inf
    rho = ((1 - 2 / dim) * trace_of_square + trace**2) / ((degrees_of_freedom + 1 - 2 / dim) * spread)
    return math.inf if rho >= 1.0 else rho / (1.0 - rho) * trace / dim
