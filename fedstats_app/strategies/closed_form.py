"""One Strategy per method, and one that serves several: one upload per client, one solve.

The mathematics, the papers and the ranges of the options are in :mod:`fedstats_app.methods`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from fedstats_app.base.option import Options
from fedstats_app.methods import Fed3RMethod, FedCGSMethod, FedCOFMethod, FedNCMMethod, FedRootMethod, Method
from fedstats_app.methods.fed3r import Fed3ROptions
from fedstats_app.methods.fedcgs import FedCGSOptions
from fedstats_app.methods.fedcof import FedCOFOptions
from fedstats_app.methods.fedroot import FedRootOptions
from fedstats_app.strategies.base import StatisticsStrategy, StrategyOptions


class ClosedForm(StatisticsStrategy):
    """Base class of the Strategies that serve one method.

    Parameters
    ----------
    num_classes : int
        C.
    method : Method
        With its options.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    TypeError
        If an argument has another name; the message suggests the nearest.

    Examples
    --------
    >>> list(ClosedForm(10, FedNCMMethod(Options())).methods())
    ['fedncm']
    """

    def __init__(self, num_classes: int, method: Method[Any], **options: Unpack[StrategyOptions]) -> None:
        refuse_unknown(type(self), options)
        super().__init__(num_classes, [method], **options)

    def __repr__(self) -> str:
        """Return the class, the number of classes and the options that differ from the defaults."""
        [method] = self.methods().values()
        usual, values = method.options_type(), vars(method.options)
        changed = [f"{name}={value!r}" for name, value in values.items() if value != getattr(usual, name)]
        return f"{type(self).__name__}({', '.join([str(self.num_classes), *changed])})"


class FedNCM(ClosedForm):
    """FedNCM (Legate et al. 2023): the normalised class means.

    Parameters
    ----------
    num_classes : int
        C.
    **options
        As :class:`StatisticsStrategy`.

    Examples
    --------
    >>> FedNCM(10, min_clients=2)
    FedNCM(10)
    """

    def __init__(self, num_classes: int, **options: Unpack[StrategyOptions]) -> None:
        super().__init__(num_classes, FedNCMMethod(Options()), **options)


class Fed3R(ClosedForm):
    """Fed3R (Fani et al. 2024): ridge regression on one-hot labels.

    Parameters
    ----------
    num_classes : int
        C.
    ridge_lambda : float or "auto"
        Added to the Gram matrix of all clients; "auto" has the largest evidence, the paper takes 0.01.
    between_class : bool
        False leaves the scatter between classes out.
    normalize : bool
        Scale the head's rows to length 1; False with ``ridge_lambda=0`` is AFL (He et al. 2025).
    solver : {"cholesky", "pinv32"}
        "pinv32" is a pseudo-inverse in float32, as in the papers.
    class_balance : bool
        Give all classes the same weight, for long-tailed data.
    **options
        As :class:`StatisticsStrategy`.

    Examples
    --------
    >>> Fed3R(10, ridge_lambda=0.01)
    Fed3R(10, ridge_lambda=0.01)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ridge_lambda: float | Literal["auto"] = "auto",
        between_class: bool = True,
        normalize: bool = True,
        solver: Literal["cholesky", "pinv32"] = "cholesky",
        class_balance: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        values = Fed3ROptions.of(
            ridge_lambda=ridge_lambda,
            between_class=between_class,
            normalize=normalize,
            solver=solver,
            class_balance=class_balance,
        )
        super().__init__(num_classes, Fed3RMethod(values), **options)


class FedCOF(ClosedForm):
    """FedCOF (Goswami et al. 2025): class covariances from the spread of the clients' class means.

    Parameters
    ----------
    num_classes : int
        C.
    shrinkage : float or "auto"
        Added to each class covariance; the paper takes 1, and 0.1 for MobileNetV2.
    between_class : bool or "only"
        True adds the scatter between classes, "only" uses nothing else.
    means_per_class : int
        Number of disjoint means per class and client.
    samples_per_mean : int
        Least number of samples of each.
    **options
        As :class:`StatisticsStrategy`.

    Examples
    --------
    >>> FedCOF(10, shrinkage=-1)
    Traceback (most recent call last):
    ...
    fedstats_app.base.option.ConfigError: shrinkage: must be a number in [0, inf] or "auto", got -1
    """

    def __init__(
        self,
        num_classes: int,
        *,
        shrinkage: float | Literal["auto"] = "auto",
        between_class: bool | Literal["only"] = False,
        means_per_class: int = 1,
        samples_per_mean: int = 2,
        **options: Unpack[StrategyOptions],
    ) -> None:
        values = FedCOFOptions.of(
            shrinkage=shrinkage,
            between_class=between_class,
        )
        super().__init__(num_classes, FedCOFMethod(values, means_per_class, samples_per_mean), **options)


class FedCGS(ClosedForm):
    """FedCGS (Guan et al. 2025): linear discriminant analysis with a shared covariance.

    Parameters
    ----------
    num_classes : int
        C.
    covariance : {"within", "total"}
        Within classes, or of all samples as in the paper.
    shrinkage : float or "auto"
        Multiple of the mean variance added to the covariance; the paper takes 0.
    class_balance : bool
        Give all classes the same weight, for long-tailed data.
    **options
        As :class:`StatisticsStrategy`.

    Examples
    --------
    >>> FedCGS(10, covariance="total", shrinkage=0)
    FedCGS(10, covariance='total', shrinkage=0.0)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        covariance: Literal["total", "within"] = "within",
        shrinkage: float | Literal["auto"] = "auto",
        class_balance: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        values = FedCGSOptions.of(
            covariance=covariance,
            shrinkage=shrinkage,
            class_balance=class_balance,
        )
        super().__init__(num_classes, FedCGSMethod(values), **options)


class FedRoot(ClosedForm):
    """FedRoot (ours, unpublished): Fed3R and FedCGS from a low-rank root of each client's scatter.

    Parameters
    ----------
    num_classes : int
        C.
    rank : str
        Directions that a client sends: a multiple ("0.5 sqrt(n)"), a share of the energy ("90%"), a number, "full", or
        bytes ("200KB").
    means_per_class : int
        Number of disjoint means per class and client.
    ridge_lambda : float or "auto"
        As of :class:`Fed3R`.
    class_balance : bool
        Give all classes the same weight, for long-tailed data.
    **options
        As :class:`StatisticsStrategy`.

    Examples
    --------
    >>> FedRoot(10, rank="200KB", ridge_lamda=3)
    Traceback (most recent call last):
    ...
    TypeError: FedRoot has no argument 'ridge_lamda' (did you mean ridge_lambda?)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rank: str = "sqrt(n)",
        means_per_class: int = 1,
        ridge_lambda: float | Literal["auto"] = "auto",
        class_balance: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        values = FedRootOptions.of(
            rank=rank,
            ridge_lambda=ridge_lambda,
            class_balance=class_balance,
        )
        super().__init__(num_classes, FedRootMethod(values, means_per_class), **options)


class OnePass(StatisticsStrategy):
    """Several methods from one upload per client.

    ``heads`` has one head per method, and ``wire_bytes(method)`` the bytes that it alone would have cost.

    Parameters
    ----------
    num_classes : int
        C.
    strategies : sequence of StatisticsStrategy
        Of different methods and the same classes. Only their methods are used, not their other options.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        Without strategies, with two of one method, or with other classes.

    Examples
    --------
    >>> OnePass(10, [FedNCM(10), Fed3R(10)])
    OnePass(10, methods=['fedncm', 'fed3r'])
    """

    def __init__(
        self, num_classes: int, strategies: Sequence[StatisticsStrategy], **options: Unpack[StrategyOptions]
    ) -> None:
        refuse_unknown(type(self), options)
        if any(strategy.num_classes != num_classes for strategy in strategies):
            raise ValueError(f"strategies must all have {num_classes} classes")
        methods = [method for strategy in strategies for method in strategy.methods().values()]
        super().__init__(num_classes, methods, **options)


def refuse_unknown(kind: type[StatisticsStrategy], options: Mapping[str, object]) -> None:
    """Raise TypeError if an option is none of :class:`StrategyOptions`, naming the nearest argument of the class."""
    for name in options.keys() - StrategyOptions.__annotations__.keys():
        near = difflib.get_close_matches(name, [*inspect.signature(kind).parameters, *StrategyOptions.__annotations__])
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(f"{kind.__name__} has no argument {name!r}{hint}")
