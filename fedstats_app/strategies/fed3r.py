"""Fed3R: federated recursive ridge regression.

Fani et al. 2024, "Accelerating heterogeneous federated learning with closed-form classifiers".

Clients send class sums, counts and their Gram matrix; the head is the ridge regression on one-hot labels of all data.
Deviations from the reference code: float64, lambda added once in the solve, and one triangle of the Gram matrix on
the wire.
"""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.heads import LinearHead, solve_ridge
from fedstats_app.statistics import FeatureMap, IdentityMap, StatisticsSpec, StatisticsSum
from fedstats_app.strategies.base import StatisticsStrategy


class Fed3R(StatisticsStrategy):
    """One upload of class sums, counts and Gram matrix; see :func:`fedstats_app.heads.solve_ridge`.

    Parameters
    ----------
    num_classes : int
        C.
    ridge_lambda, between_class, fit_bias, solver
        As :func:`fedstats_app.heads.solve_ridge`, with the papers' values as defaults.
    feature_map : FeatureMap
        :class:`RandomFourierFeatures` gives Fed3R-RF.
    **options
        As :class:`StatisticsStrategy`.
    """

    name = "fed3r"

    def __init__(
        self,
        num_classes: int,
        *,
        ridge_lambda: float | Literal["auto"] = 0.01,
        between_class: bool = True,
        fit_bias: bool = False,
        solver: Literal["cholesky", "pinv32"] = "cholesky",
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        self.ridge_lambda, self.between_class, self.fit_bias, self.solver = (
            ridge_lambda,
            between_class,
            fit_bias,
            solver,
        )
        self.feature_map = feature_map
        super().__init__(num_classes, **options)

    @property
    def specification(self) -> StatisticsSpec:
        """Class sums and Gram matrix of the mapped features."""
        return StatisticsSpec(gram=True, feature_map=self.feature_map)

    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the ridge head."""
        return solve_ridge(
            statistics.summed(),
            ridge_lambda=self.ridge_lambda,
            between_class=self.between_class,
            fit_bias=self.fit_bias,
            solver=self.solver,
        )
