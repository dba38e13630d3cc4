"""Fed3R as a Strategy; see :mod:`fedstats_app.methods.fed3r`."""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.methods.fed3r import FED3R, Fed3ROptions
from fedstats_app.statistics import FeatureMap, IdentityMap
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
        own = Fed3ROptions(ridge_lambda=ridge_lambda, between_class=between_class, bias=fit_bias, solver=solver)
        super().__init__(num_classes, [FED3R.configured(own, feature_map=feature_map)], **options)
