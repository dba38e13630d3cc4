"""FedCOF: covariances for free from client means.

Goswami et al. 2025, "Covariances for free: exploiting mean distributions for training-free federated learning".

Clients send the same as for FedNCM; the server estimates class covariances from the spread of the means. Deviations
from the reference code: the divisor is the number of means of the class, one symmetric product replaces C matrices,
and an absent class adds nothing.
"""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.heads import LinearHead, solve_fedcof
from fedstats_app.statistics import StatisticsSpec, StatisticsSum
from fedstats_app.strategies.base import StatisticsStrategy


class FedCOF(StatisticsStrategy):
    """One upload of class sums and counts, M d numbers in all; see :func:`fedstats_app.heads.solve_fedcof`.

    The server keeps every row, so that clients may arrive over several rounds with the result of one.

    Parameters
    ----------
    num_classes : int
        C.
    shrinkage, between_class
        As :func:`fedstats_app.heads.solve_fedcof`, with the paper's values as defaults.
    means_per_class : int
        Disjoint means that a client sends per class.
    **options
        As :class:`StatisticsStrategy`.
    """

    name = "fedcof"

    def __init__(
        self,
        num_classes: int,
        *,
        shrinkage: float | Literal["auto"] = 1.0,
        between_class: bool = False,
        means_per_class: int = 1,
        **options: Any,
    ) -> None:
        self.shrinkage, self.between_class, self.means_per_class = shrinkage, between_class, means_per_class
        super().__init__(num_classes, **options)

    @property
    def specification(self) -> StatisticsSpec:
        """Class sums of the features, in several parts if asked for."""
        return StatisticsSpec(means_per_class=self.means_per_class)

    @property
    def keeps_rows(self) -> bool:
        """Covariances come from the rows."""
        return True

    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the FedCOF head."""
        return solve_fedcof(statistics.rows(), shrinkage=self.shrinkage, between_class=self.between_class)
