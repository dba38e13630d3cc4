"""FedCGS as a Strategy; see :mod:`fedstats_app.methods.fedcgs`."""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.methods.fedcgs import FEDCGS, FedCGSOptions
from fedstats_app.statistics import FeatureMap, IdentityMap
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

    def __init__(
        self,
        num_classes: int,
        *,
        covariance: Literal["total", "within"] = "total",
        shrinkage: float = 0.0,
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        own = FedCGSOptions(covariance, shrinkage)
        super().__init__(num_classes, [FEDCGS.configured(own, feature_map=feature_map)], **options)
