"""FedCGS: Gaussian discriminant from global statistics.

Guan et al. 2025, "Capturing global feature statistics for one-shot federated learning".

Clients send class sums, counts and their Gram matrix; the head is linear discriminant analysis with a shared
covariance. Deviations from the reference code: solved rather than inverted, an absent class is masked rather than NaN,
and no separate sum of features is sent.
"""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.heads import LinearHead, solve_gaussian
from fedstats_app.statistics import FeatureMap, IdentityMap, StatisticsSpec, StatisticsSum
from fedstats_app.strategies.base import StatisticsStrategy


class FedCGS(StatisticsStrategy):
    """One upload of class sums, counts and Gram matrix; see :func:`fedstats_app.heads.solve_gaussian`.

    Parameters
    ----------
    num_classes : int
        C.
    covariance, shrinkage
        As :func:`fedstats_app.heads.solve_gaussian`, with the paper's values as defaults.
    feature_map : FeatureMap
        :class:`RandomProjection` gives the paper's feature expansion; use some shrinkage with it.
    **options
        As :class:`StatisticsStrategy`.
    """

    name = "fedcgs"

    def __init__(
        self,
        num_classes: int,
        *,
        covariance: Literal["total", "within"] = "total",
        shrinkage: float = 0.0,
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        self.covariance, self.shrinkage, self.feature_map = covariance, shrinkage, feature_map
        super().__init__(num_classes, **options)

    @property
    def specification(self) -> StatisticsSpec:
        """Class sums and Gram matrix of the mapped features."""
        return StatisticsSpec(gram=True, feature_map=self.feature_map)

    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the Gaussian head."""
        return solve_gaussian(statistics.summed(), covariance=self.covariance, shrinkage=self.shrinkage)
