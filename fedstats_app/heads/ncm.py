"""FedNCM: the nearest class mean by cosine (Legate et al. 2023, "Guiding the last layer in federated learning").

Its robust form takes rows around the geometric median of the clients' means (Pillutla, Kakade and Harchaoui 2022,
"Robust aggregation for federated learning"), so that no single client moves a class mean far; how the rows are drawn in
around the median is of this app.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.statistics.share_caps import level

# The most of a class that one row weighs in its median.
MAX_WEIGHT = 0.1
# Rows farther from the median than so many times the usual distance are drawn in to it.
MAX_DISTANCE = 3.0
ITERATIONS, TOLERANCE = 100, 1e-8


def robust_rows(rows: ClassMeanRows) -> ClassMeanRows:
    """Return rows whose class means are the geometric medians of the given ones, with outliers drawn in.

    Counts are cut as by a cap of MAX_WEIGHT on shares of the class. The distance of a mean of n samples from the
    median goes with 1 / sqrt(n): one that is more than MAX_DISTANCE times the class's median of sqrt(n) distance away
    is moved to there. Then all are moved together, so that their weighted mean is the median.

    Parameters
    ----------
    rows : ClassMeanRows
        All clients' rows, with integer counts.
    """
    counts, means = rows.counts.clone(), rows.means
    for class_id in torch.unique(rows.class_ids).tolist():
        own = (rows.class_ids == class_id).nonzero().squeeze(1)
        exact = rows.counts[own].to(torch.float64)
        weights = exact.clamp(max=level(exact, 0.0, MAX_WEIGHT)).round().clamp(min=1.0)
        center = geometric_median(means[own], weights)
        away = means[own] - center
        distances = torch.linalg.vector_norm(away, dim=1) * weights.sqrt()
        most = MAX_DISTANCE * distances.median()
        away *= (most / distances.clamp(min=1e-300)).clamp(max=1.0).unsqueeze(1)
        away -= (weights.unsqueeze(1) * away).sum(dim=0) / weights.sum()
        means[own], counts[own] = center + away, weights.to(torch.int64)
    return ClassMeanRows(rows.class_ids, counts, means, rows.num_classes)


def geometric_median(points: Tensor, weights: Tensor) -> Tensor:
    """Return the (d,) point with the least weighted sum of distances to (n, d) float64 points, by Weiszfeld's method.

    Parameters
    ----------
    points : Tensor
        At least one.
    weights : Tensor
        (n,) float64, positive.
    """
    center = (weights.unsqueeze(1) * points).sum(dim=0) / weights.sum()
    # Below this distance two points are the same.
    floor = 1e-9 * float(torch.linalg.vector_norm(points, dim=1).max()) + 1e-300
    for _ in range(ITERATIONS):
        pull = weights / torch.linalg.vector_norm(points - center, dim=1).clamp(min=floor)
        moved = (pull.unsqueeze(1) * points).sum(dim=0) / pull.sum()
        step = float(torch.linalg.vector_norm(moved - center))
        center = moved
        if step <= TOLERANCE * float(torch.linalg.vector_norm(center)):
            break
    return center


def solve_ncm(stats: FeatureStatistics) -> LinearHead:
    """Return the head W_c = mu_c / ||mu_c||, b = 0.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics; the Gram matrix is not used.

    Returns
    -------
    LinearHead
        float64. The row of an absent class is zero. Exact: the same as centralised class means for any split.
    """
    return LinearHead.of_rows(stats.class_means, stats.present)
