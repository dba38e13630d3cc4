"""Distances of samples from those that a head was made from, by the scatter that is in its statistics.

The Mahalanobis distance (Lee et al. 2018 find samples of another kind by it) is about the mean of all samples, with a
small ridge, since d is often above n. A limit is the distance that a share of samples which the head was not made from
does not exceed (split conformal prediction, as in :mod:`fedstats_app.heads.coverage`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import add_to_diagonal
from fedstats_app.heads.scatter import needed_gram
from fedstats_app.statistics import FeatureStatistics

# Share of samples like those of the training that stay within the limit.
WITHIN = 0.99
# Of the mean variance of a feature; a tenth and ten times as much find as many on the sets that were tried.
_RIDGE = 0.01


@dataclass(frozen=True, eq=False)
class Likeness:
    """Mean of the training samples, and a factor of their covariance.

    Attributes
    ----------
    mean : Tensor
        (d,) float64.
    factor : Tensor
        (d, d) float64, the lower Cholesky factor of the covariance with its ridge.
    """

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, stats: FeatureStatistics) -> Likeness:
        """Return that of all samples in statistics with a Gram matrix.

        Raises
        ------
        ValueError
            Without a Gram matrix, or of no samples.
        """
        gram, number = needed_gram(stats, "a distance from the training data"), float(stats.class_counts.sum())
        if number == 0.0:
            raise ValueError("a distance from the training data needs samples, got none")
        mean = stats.class_sums.sum(dim=0) / number
        covariance = gram / number - torch.outer(mean, mean)
        ridge = _RIDGE * max(float(covariance.trace()) / len(mean), 1e-12)
        return cls(mean, torch.linalg.cholesky(add_to_diagonal(covariance, ridge)))

    def distances(self, features: Tensor) -> Tensor:
        """Return (n,) float64 squared distances of (n, d) features."""
        centred = (features.to("cpu", torch.float64) - self.mean).T
        whitened: Tensor = torch.linalg.solve_triangular(self.factor, centred, upper=False)
        return whitened.square().sum(dim=0)


def limit(distances: Tensor) -> float | None:
    """Return the distance within which new samples like n known ones lie, in a share of WITHIN; None of too few."""
    place = math.ceil(WITHIN * (len(distances) + 1) - 1e-9)
    return float(distances.sort().values[place - 1]) if place <= len(distances) else None
