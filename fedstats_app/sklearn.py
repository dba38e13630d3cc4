"""The methods as scikit-learn classifiers that can be merged: ``a + b`` is the classifier of both data sets together.

Needs scikit-learn (extra: sklearn). FedRoot has no classifier: its factors are made for the wire, and here the Gram
matrix is at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedstats_app.heads import LinearHead
from fedstats_app.methods import Fed3RMethod, FedCGSMethod, FedCOFMethod, FedNCMMethod, Method
from fedstats_app.statistics import ClassMeanRows, ClientStatistics
from fedstats_app.statistics.collected import StatisticsSum, sum_without


class _Merged:
    """The sum of all samples seen, and the head, which is solved when it is first needed."""

    def __init__(self, method: Method[Any], seed: int, total: StatisticsSum) -> None:
        self.method, self.seed, self.total = method, seed, total

    @cached_property
    def head(self) -> LinearHead:
        head = self.method.head(self.total)
        for note in head.report.notes:
            warnings.warn(f"{self.method.display_name}: {note}", stacklevel=4)
        return head

    def among(self, old: Any, new: Any) -> _Merged:
        """Return the same with the old classes numbered as in a sorted list that includes them."""
        total = self.total.renumbered(torch.from_numpy(np.searchsorted(new, old)), len(new))
        return _Merged(self.method, self.seed, total)

    def as_client(self) -> ClientStatistics:
        """Return everything as if of one client, to be added to another sum or taken out of it."""
        summed = self.total.summed()
        if self.total.keeps_rows:
            return ClientStatistics(self.total.rows(), summed.gram)
        ids = summed.present.nonzero()[:, 0]
        rows = ClassMeanRows(
            ids, summed.class_counts[ids], num_classes=summed.num_classes, class_sums=summed.class_sums[ids]
        )
        return ClientStatistics(rows, summed.gram)


class ClosedFormClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base class of the methods as scikit-learn classifiers.

    Each call of ``fit`` or ``partial_fit`` is one client. ``a + b`` and ``a - b`` merge fitted classifiers and take one
    out again, to rounding; classes may differ.

    Attributes
    ----------
    classes_ : ndarray
        (C,), sorted.
    head_ : LinearHead
        The solved head.
    n_features_in_ : int
        d.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.8, 0.1]]), np.array(["a", "a", "b", "b"])
    >>> sites = [FedCGSClassifier().fit(X[k::2], y[k::2]) for k in (0, 1)]
    >>> sum(sites).predict(X)
    array(['a', 'a', 'b', 'b'], dtype='<U1')
    """

    method_type: ClassVar[type[Method[Any]]]
    classes_: Any
    _merged: _Merged

    def fit(self, X: Any, y: Any) -> Self:
        """Forget all samples, and learn (n, d) features X with (n,) class labels y."""
        return self._learn(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Add the samples of another client; ``classes`` names some that have no samples yet."""
        return self._learn(X, y, classes, first=not hasattr(self, "_merged"))

    def _learn(self, X: Any, y: Any, classes: Any, *, first: bool) -> Self:
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=first)
        check_classification_targets(y)
        names = [y if classes is None else np.concatenate([np.asarray(classes), y])]
        known = np.unique(np.concatenate(names if first else [self.classes_, *names]))
        merged = self._nothing(X, len(known)) if first else self._merged.among(self.classes_, known)
        labels = torch.from_numpy(np.searchsorted(known, y))
        spec = merged.method.specification
        merged.total.add(spec.from_features(torch.tensor(X), labels, len(known), seed=merged.seed))
        self.classes_, self._merged = known, merged
        return self

    def _nothing(self, X: Any, num_classes: int) -> _Merged:
        """Return the sum of no samples, with the parameters as they are now."""
        values = self.get_params(deep=False)
        seed = values.pop("seed")
        means = values.pop("means_per_class", 1), values.pop("samples_per_mean", 2)
        method = self.method_type(self.method_type.options_type.of(**values), *means)
        gram = method.specification.gram
        return _Merged(method, seed, StatisticsSum(num_classes, X.shape[1], gram=gram, keep_rows=method.keeps_rows))

    def _combined(self, other: ClosedFormClassifier, combine: Callable[..., StatisticsSum]) -> Self:
        check_is_fitted(self)
        check_is_fitted(other)
        mine, its = self._merged, other._merged
        if (mine.method, mine.seed) != (its.method, its.seed) or self.n_features_in_ != other.n_features_in_:
            raise ValueError(
                f"classifiers to combine must have the same parameters and features, got {mine.method} for "
                f"{self.n_features_in_} features and {its.method} for {other.n_features_in_}"
            )
        known = np.union1d(self.classes_, other.classes_)
        merged = mine.among(self.classes_, known)
        merged.total = combine(merged.total, its.among(other.classes_, known).as_client())
        made: Self = clone(self)
        made.n_features_in_, made.classes_, made._merged = self.n_features_in_, known, merged
        return made

    def __add__(self, other: object) -> Self:
        """Return the classifier of both data sets together."""
        if not isinstance(other, ClosedFormClassifier):
            return NotImplemented
        return self._combined(other, _with_client)

    def __radd__(self, other: object) -> Self:
        """Return ``self`` for the 0 that ``sum`` begins with."""
        return self if other == 0 else NotImplemented

    def __sub__(self, other: object) -> Self:
        """Return the classifier without the samples of one that was added.

        Raises
        ------
        ValueError
            If it has samples that this one has not, as far as counts tell; with FedCOF, means.
        """
        if not isinstance(other, ClosedFormClassifier):
            return NotImplemented
        return self._combined(other, sum_without)

    @property
    def head_(self) -> LinearHead:
        """The solved head."""
        check_is_fitted(self)
        return self._merged.head

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether there is a head."""
        return hasattr(self, "_merged")

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        features = torch.tensor(X, dtype=torch.float64)
        return self.head_.logits(features)

    def decision_function(self, X: Any) -> Any:
        """Score (n, d) features: (n, C), -inf for a class without samples; (n,) of the second class if C is 2."""
        scores = self._logits(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> Any:
        """Return the (n,) class labels of (n, d) features."""
        ids = self._logits(X).argmax(dim=1).numpy()
        return self.classes_[ids]

    def predict_proba(self, X: Any) -> Any:
        """Return the (n, C) softmax of the scores.

        FedCGS has probabilities of its model. The scores of other methods have any scale: wrap those in
        ``sklearn.calibration.CalibratedClassifierCV``.
        """
        return torch.softmax(self._logits(X), dim=1).numpy()


def _with_client(total: StatisticsSum, client: ClientStatistics) -> StatisticsSum:
    total.add(client)
    return total


class FedNCMClassifier(ClosedFormClassifier):
    """FedNCM (Legate et al. 2023): the normalised class means.

    Parameters
    ----------
    seed : int
        Not used: FedNCM draws nothing.

    Examples
    --------
    >>> FedNCMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"]).predict([[0.2, 0.7]])
    array(['a'], dtype='<U1')
    """

    method_type = FedNCMMethod

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed


class Fed3RClassifier(ClosedFormClassifier):
    """Fed3R (Fani et al. 2024): ridge regression on one-hot labels.

    Parameters
    ----------
    ridge_lambda, between_class, normalize, solver, class_balance
        As :class:`fedstats_app.strategies.Fed3R`.
    seed : int
        Not used: Fed3R draws nothing.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.8, 0.1]]), np.array(["a", "a", "b", "b"])
    >>> (Fed3RClassifier().fit(X[:2], y[:2]) + Fed3RClassifier().fit(X[2:], y[2:])).predict(X)
    array(['a', 'a', 'b', 'b'], dtype='<U1')
    """

    method_type = Fed3RMethod

    def __init__(
        self,
        *,
        ridge_lambda: float | Literal["auto"] = "auto",
        between_class: bool = True,
        normalize: bool = True,
        solver: Literal["cholesky", "pinv32"] = "cholesky",
        class_balance: bool = False,
        seed: int = 0,
    ) -> None:
        self.ridge_lambda = ridge_lambda
        self.between_class = between_class
        self.normalize = normalize
        self.solver = solver
        self.class_balance = class_balance
        self.seed = seed


class FedCOFClassifier(ClosedFormClassifier):
    """FedCOF (Goswami et al. 2025): class covariances from the spread of the class means of several fits.

    Parameters
    ----------
    shrinkage, between_class, means_per_class, samples_per_mean
        As :class:`fedstats_app.strategies.FedCOF`.
    seed : int
        Draws which samples share a mean if there are several per class.

    Examples
    --------
    >>> import numpy as np
    >>> rng, y = np.random.default_rng(0), np.arange(20) % 2
    >>> sites = [FedCOFClassifier().fit(rng.normal(size=(20, 3)) + y[:, None], y) for site in range(9)]
    >>> sum(sites).head_.report.notes
    ()
    """

    method_type = FedCOFMethod

    def __init__(
        self,
        *,
        shrinkage: float | Literal["auto"] = "auto",
        between_class: bool | Literal["only"] = False,
        means_per_class: int = 1,
        samples_per_mean: int = 2,
        seed: int = 0,
    ) -> None:
        self.shrinkage = shrinkage
        self.between_class = between_class
        self.means_per_class = means_per_class
        self.samples_per_mean = samples_per_mean
        self.seed = seed


class FedCGSClassifier(ClosedFormClassifier):
    """FedCGS (Guan et al. 2025): linear discriminant analysis with a shared covariance.

    Parameters
    ----------
    covariance, shrinkage, class_balance
        As :class:`fedstats_app.strategies.FedCGS`.
    seed : int
        Not used: FedCGS draws nothing.

    Examples
    --------
    >>> model = FedCGSClassifier().fit([[0.0, 1.0], [0.2, 0.7], [1.0, 0.0], [0.8, 0.1]], [3, 3, 4, 4])
    >>> model.predict_proba([[0.1, 0.9]]).round(2)
    array([[1., 0.]])
    """

    method_type = FedCGSMethod

    def __init__(
        self,
        *,
        covariance: Literal["total", "within"] = "within",
        shrinkage: float | Literal["auto"] = "auto",
        class_balance: bool = False,
        seed: int = 0,
    ) -> None:
        self.covariance = covariance
        self.shrinkage = shrinkage
        self.class_balance = class_balance
        self.seed = seed
