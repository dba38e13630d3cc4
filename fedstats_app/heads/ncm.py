"""FedNCM: the nearest class mean by cosine (Legate et al. 2023, "Guiding the last layer in federated learning")."""

from __future__ import annotations

from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.statistics import FeatureStatistics


def solve_ncm(stats: FeatureStatistics) -> LinearHead:
    """Return the float64 head W_c = mu_c / ||mu_c||, b = 0; the row of an absent class is zero.

    The Gram matrix is not used. Exact: the same as centralised class means for any split.
    """
    return LinearHead.of_rows(stats.class_means, stats.present)
