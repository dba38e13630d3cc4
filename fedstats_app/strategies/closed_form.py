"""The methods as Flower Strategies, with the papers' values as defaults: one upload per client, one solve.

What a method is and which paper it is from stands in :mod:`fedstats_app.methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fedstats_app.methods import FEDNCM
from fedstats_app.methods.fed3r import FED3R, Fed3ROptions
from fedstats_app.methods.fedcgs import FEDCGS, FedCGSOptions
from fedstats_app.methods.fedcof import FEDCOF, FedCOFOptions
from fedstats_app.methods.fedroot import FEDROOT, FedRootOptions
from fedstats_app.statistics import FeatureMap, IdentityMap
from fedstats_app.strategies.base import StatisticsStrategy


class FedNCM(StatisticsStrategy):
    """One upload of class sums and counts, M d numbers in all; see :func:`fedstats_app.heads.solve_ncm`."""

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__(num_classes, [FEDNCM.configured()], **options)


class Fed3R(StatisticsStrategy):
    """One upload of class sums, counts and Gram matrix; see :func:`fedstats_app.heads.solve_ridge`.

    Parameters
    ----------
    num_classes : int
        C.
    ridge_lambda, between_class, fit_bias, normalize, solver
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
        normalize: bool = True,
        solver: Literal["cholesky", "pinv32"] = "cholesky",
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        own = Fed3ROptions(
            ridge_lambda=ridge_lambda,
            between_class=between_class,
            bias=fit_bias,
            normalize=normalize,
            solver=solver,
        )
        super().__init__(num_classes, [FED3R.configured(own, feature_map=feature_map)], **options)


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

    def __init__(
        self,
        num_classes: int,
        *,
        shrinkage: float | Literal["auto"] = 1.0,
        between_class: bool = False,
        means_per_class: int = 1,
        **options: Any,
    ) -> None:
        own = FedCOFOptions(shrinkage, between_class, means_per_class=means_per_class)
        super().__init__(num_classes, [FEDCOF.configured(own)], **options)


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
        shrinkage: float | Literal["auto"] = 0.0,
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        own = FedCGSOptions(covariance, shrinkage)
        super().__init__(num_classes, [FEDCGS.configured(own, feature_map=feature_map)], **options)


class FedRoot(StatisticsStrategy):
    """One upload of class sums, counts and a factor of the scatter; see :func:`fedstats_app.heads.solve_fedroot`.

    Parameters
    ----------
    num_classes : int
        C.
    rank : str
        How many directions of its scatter a client sends, as :class:`fedstats_app.rank_rule.RankRule` says.
    factor_dtype : {"float16", "float32"}
        Of these directions.
    head, ridge_lambda, shrinkage
        As :func:`fedstats_app.heads.solve_fedroot`.
    means_per_class : int
        Disjoint means that a client sends per class.
    feature_map : FeatureMap
        Applied to the features first.
    **options
        As :class:`StatisticsStrategy`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rank: str = "sqrt(n)",
        factor_dtype: Literal["float16", "float32"] = "float16",
        head: Literal["ridge", "within"] = "ridge",
        ridge_lambda: float | Literal["auto"] = "auto",
        shrinkage: float | Literal["auto"] = "auto",
        means_per_class: int = 1,
        feature_map: FeatureMap = IdentityMap(),  # noqa: B008  # frozen and stateless
        **options: Any,
    ) -> None:
        own = FedRootOptions(
            rank=rank,
            factor_dtype=factor_dtype,
            means_per_class=means_per_class,
            head=head,
            ridge_lambda=ridge_lambda,
            shrinkage=shrinkage,
        )
        super().__init__(num_classes, [FEDROOT.configured(own, feature_map=feature_map)], **options)


class OnePass(StatisticsStrategy):
    """Serves several strategies from one upload.

    ``heads`` holds one head per method, and ``wire_bytes(method)`` what each alone would have cost.

    Parameters
    ----------
    num_classes : int
        C.
    strategies : sequence of StatisticsStrategy
        Of different methods and the same classes. Only what they ask for and how they solve is used; how clients are
        asked is this object's own business.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        Without strategies, with two of one method, or with other classes.
    """

    def __init__(self, num_classes: int, strategies: Sequence[StatisticsStrategy], **options: Any) -> None:
        if any(strategy.num_classes != num_classes for strategy in strategies):
            raise ValueError(f"strategies must all have {num_classes} classes")
        methods = [method for strategy in strategies for method in strategy.methods().values()]
        super().__init__(num_classes, methods, **options)
