"""FedNCM: class means in one round.

Legate et al. 2023, "Guiding the last layer in federated learning with pre-trained models".

Clients send class sums and counts; the head is the row-normalised class means, exact for any split. Deviation from
the reference code: no random bias is kept, and an absent class gives a zero row instead of NaN.
"""

from __future__ import annotations

from fedstats_app.heads import LinearHead, solve_ncm
from fedstats_app.statistics import StatisticsSpec, StatisticsSum
from fedstats_app.strategies.base import StatisticsStrategy


class FedNCM(StatisticsStrategy):
    """One upload of class sums and counts, M d numbers in all; see :func:`fedstats_app.heads.solve_ncm`."""

    name = "fedncm"

    @property
    def specification(self) -> StatisticsSpec:
        """Class sums of the features."""
        return StatisticsSpec()

    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the nearest-class-mean head."""
        return solve_ncm(statistics.summed())
