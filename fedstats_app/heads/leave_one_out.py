"""Leave-one-out scores of a ridge head: each training sample is judged by the head of all others, exactly.

With h = x^T A x, A = (G + lambda I)^-1 and e = y - W x, leaving out a sample x with one-hot label y changes the ridge
W by -e (A x)^T / (1 - h) (the Sherman-Morrison formula; Allen's 1974 PRESS statistic). So sites can judge a head on
the samples that it was made from, with what the server solved, and keep no samples aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, add_to_diagonal
from fedstats_app.heads.scatter import needed_gram
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.accumulation import check_tensor

# A sample that alone decides its own score has a leverage of 1, and nothing is known of the head without it.
_LARGEST_LEVERAGE = 1.0 - 1e-6
# A row of a class without other samples is zero up to rounding.
_NOTHING = 1e-6


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Values from which a ridge head's leave-one-out scores follow, beside the head.

    Attributes
    ----------
    inverse : Tensor
        (d, d) float64, (G + lambda I)^-1.
    lengths : Tensor
        (C,) float64, of the ridge's rows before they were scaled to length 1.
    """

    inverse: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        check_tensor("inverse", self.inverse, (len(self.inverse), len(self.inverse)), torch.float64)
        check_tensor("lengths", self.lengths, (None,), torch.float64)

    @classmethod
    def of(cls, stats: FeatureStatistics, ridge_lambda: float) -> LeaveOneOut:
        """Return that of :func:`fedstats_app.heads.solve_ridge` with this lambda and otherwise its defaults.

        Raises
        ------
        ValueError
            Without a Gram matrix.
        """
        factor = torch.linalg.cholesky(add_to_diagonal(needed_gram(stats, "leave-one-out"), ridge_lambda))
        inverse = torch.cholesky_inverse(factor)
        return cls(inverse, torch.linalg.vector_norm(inverse @ stats.class_sums.T, dim=0))

    def logits(self, head: LinearHead, features: Tensor, labels: Tensor) -> Tensor:
        """Score training samples by the head without them.

        Parameters
        ----------
        head : LinearHead
            Of rows of length 1.
        features : Tensor
            (n, d).
        labels : Tensor
            (n,) int64 in [0, C).

        Returns
        -------
        Tensor
            (n, C) float64, -inf for absent classes, and for a class of which the sample is the only one.
        """
        x, ridge = features.to(torch.float64), head.weight.to(torch.float64) * self.lengths.unsqueeze(1)
        solved = x @ self.inverse  # (n, d)
        leverage = (solved * x).sum(dim=1, keepdim=True).clamp(max=_LARGEST_LEVERAGE)
        scores = x @ ridge.T
        errors = torch.nn.functional.one_hot(labels, len(ridge)) - scores
        step = errors / (1.0 - leverage)  # (n, C): by how much of -A x each row changes
        squares = self.lengths.square() - 2.0 * (solved @ ridge.T) * step
        squares = squares + solved.square().sum(dim=1, keepdim=True) * step.square()
        left = squares > (_NOTHING * self.lengths).square()
        found = (scores - leverage * step) / squares.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        return head.masked(found.masked_fill(~left, -torch.inf))


class ClientLeftOut:
    """Scores of a client's training samples by a head that was made without the client."""

    def logits(self, head: LinearHead, features: Tensor, labels: Tensor) -> Tensor:
        """Score samples (n, d); their labels change nothing."""
        return head.logits(features)
