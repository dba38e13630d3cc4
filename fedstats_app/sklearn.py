"""The methods as scikit-learn classifiers that can be merged: ``a + b`` is the classifier of both data sets together.

Made from the methods' records, as the Strategy classes are. Needs scikit-learn (extra: sklearn).
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedstats_app.heads import LinearHead
from fedstats_app.methods import METHODS, ConfiguredMethod, Method
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, StatisticsSum
from fedstats_app.statistics.collected import sum_without_client


class _Merged:
    """The sum of all samples seen, and the head, which is solved when it is first needed."""

    def __init__(self, kind: type[ClosedFormClassifier], options: Any, seed: int, total: StatisticsSum) -> None:
        self.kind, self.options, self.seed, self.total = kind, options, seed, total

    @property
    def method(self) -> ConfiguredMethod:
        return self.kind.record.configured(self.options, seed=self.seed)  # made anew: records cannot be pickled

    @cached_property
    def head(self) -> LinearHead:
        return self.method.solve(self.total)

    def among(self, old: Any, new: Any) -> _Merged:
        """Return the same with the old classes numbered as in a sorted list that includes them."""
        total = self.total.renumbered(torch.from_numpy(np.searchsorted(new, old)), len(new))
        return _Merged(self.kind, self.options, self.seed, total)

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
    """A method as a scikit-learn classifier; the classes that :func:`classifier_class` makes have its options.

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
    """

    record: ClassVar[Method[Any]]
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
        """Return the sum of no samples, with the parameters as they are now; a kernel's width is measured on X."""
        values = self.get_params(deep=False)
        seed = values.pop("seed")
        options = self.record.measure(self.record.options.of(**values), lambda: torch.tensor(X), lambda line: None)
        method = self.record.configured(options, seed=seed)
        spec = method.specification
        dim = spec.feature_map.output_dim(X.shape[1])
        total = StatisticsSum(num_classes, dim, gram=spec.gram, keep_rows=method.keeps_rows)
        return _Merged(type(self), options, seed, total)

    def _combined(self, other: ClosedFormClassifier, combine: Callable[..., StatisticsSum]) -> Self:
        check_is_fitted(self)
        check_is_fitted(other)
        mine, its = self._merged, other._merged
        if mine.method != its.method or self.n_features_in_ != other.n_features_in_:
            raise ValueError(
                f"classifiers to combine must have the same parameters and features, got {mine.options} for "
                f"{self.n_features_in_} features and {its.options} for {other.n_features_in_}"
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

    def __sub__(self, other: object) -> Self:
        """Return the classifier without the samples of one that was added.

        Raises
        ------
        ValueError
            If it has samples that this one has not, as far as counts tell; with FedCOF, means.
        """
        if not isinstance(other, ClosedFormClassifier):
            return NotImplemented
        return self._combined(other, sum_without_client)

    @property
    def head_(self) -> LinearHead:
        """The solved head, on mapped features where the parameters ask for random ones."""
        check_is_fitted(self)
        return self._merged.head

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether there is a head."""
        return hasattr(self, "_merged")

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        features = torch.tensor(X, dtype=torch.float64)
        return self.head_.logits(self._merged.method.specification.feature_map(features))

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


def classifier_class(record: Method[Any]) -> type[ClosedFormClassifier]:
    """Make the classifier of a method, with the parameters and the docstring that scikit-learn and ``help()`` read."""
    kinds, lines, parameters = get_type_hints(record.options), [], []
    for key, one in record.options.keys().items():
        kind = inspect.formatannotation(kinds[one.name]).replace("typing.", "")
        sentence = textwrap.fill(one.metadata["sentence"] or key, 112)
        lines.append(f"{one.name} : {kind}\n{textwrap.indent(sentence, '    ')}\n")
        parameters.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default))
    parameters.append(inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=0))
    signature = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *parameters])

    def __init__(self: ClosedFormClassifier, *arguments: Any, **values: Any) -> None:
        bound = signature.bind(self, *arguments, **values)
        bound.apply_defaults()
        self.__dict__.update({name: value for name, value in bound.arguments.items() if name != "self"})

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    name = f"{record.display_name.replace('-', '')}Classifier"
    doc = (
        f"{record.display_name} ({record.paper}) as a scikit-learn classifier that can be merged.\n\n"
        f"Parameters\n----------\n{''.join(lines)}seed : int\n    Draws what is random, if something is.\n"
    )
    members = {"record": record, "__init__": __init__, "__module__": __name__, "__doc__": doc}
    return type(name, (ClosedFormClassifier,), members)


# A method that is added has its class here. FedRoot's factors are made for the wire: here the Gram matrix is at hand.
CLASSES = {made.__name__: made for made in (classifier_class(one) for one in METHODS.values() if not one.needs.scatter)}
globals().update(CLASSES)
__all__ = [*CLASSES, "ClosedFormClassifier", "classifier_class"]
