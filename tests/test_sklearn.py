"""The methods in scikit-learn: its own checks, and merging and removal as of one fit."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from fedstats_app.methods import Need
from fedstats_app.sklearn import Fed3RClassifier, FedCGSClassifier, FedCOFClassifier, FedNCMClassifier
from fedstats_app.statistics.collected import StatisticsSum

X, TARGET = load_iris(return_X_y=True)
Y = np.array(["setosa", "versicolor", "virginica"])[TARGET]
# Three sites, of which the first two have two classes each.
SITES = [np.flatnonzero((TARGET != missing) & (np.arange(150) % 3 == site)) for site, missing in enumerate((2, 0, -1))]
CLASSES = (FedNCMClassifier, Fed3RClassifier, FedCOFClassifier, FedCGSClassifier)
every_class = pytest.mark.parametrize("made", CLASSES)


def fitted(model: Any) -> list[Any]:
    return [clone(model).fit(X[site], Y[site]) for site in SITES]


def same(one: Any, other: Any) -> bool:
    """Whether two classifiers of the same classes have the same head, to the rounding of their sums."""
    a, b = one.head_, other.head_
    return bool(np.allclose(a.weight, b.weight, rtol=1e-7, atol=1e-9) and np.allclose(a.bias, b.bias, rtol=1e-7))


@every_class
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_it(made: Any) -> None:
    check_estimator(made())


@every_class
def test_sites_added_in_any_way_are_one_classifier(made: Any) -> None:
    a, b, c = fitted(made())
    together = made()
    for site in SITES:
        together.partial_fit(X[site], Y[site])
    assert list(a.classes_) == ["setosa", "versicolor"] and list(together.classes_) == sorted(set(Y))
    assert same(a + b + c, together) and same(c + (b + a), together)
    assert not same(a + c, together)
    assert list(a.classes_) == ["setosa", "versicolor"]  # as it was
    if made is not FedCOFClassifier:  # it takes each fit's means as those of a client
        everything = np.concatenate(SITES)
        assert same(made().fit(X[everything], Y[everything]), together)


@every_class
def test_a_site_is_taken_out_again(made: Any) -> None:
    a, b, c = fitted(made())
    left = a + b + c - b
    assert same(left, a + c) and (left.predict(X) == (a + c).predict(X)).all()
    only = a + b - b  # of the class that b alone had, nothing is left: it is never predicted
    assert list(only.classes_) == sorted(set(Y)) and set(only.predict(X)) == {"setosa", "versicolor"}
    assert (only.predict_proba(X)[:, 2] == 0.0).all()


@every_class
def test_it_is_the_methods_own_head(made: Any) -> None:
    method = made.method_type.default()
    spec = method.specification
    total = StatisticsSum(3, 4, gram=spec.gram, keep_rows=method.keeps_rows)
    model = made()
    for site in SITES:
        model.partial_fit(X[site], Y[site])
        total.add(spec.from_features(torch.tensor(X[site]), torch.tensor(TARGET[site]), 3))
    expected = method.head(total)
    assert np.array_equal(model.head_.weight, expected.weight) and model.head_.report == expected.report


def test_one_fit_of_fedcof_says_that_it_is_fedncm() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="FedCOF: 3 means of 3 classes are too few"):
        once = FedCOFClassifier().fit(X, y).predict(X)
    assert np.array_equal(once, FedNCMClassifier().fit(X, y).predict(X))


def test_several_are_summed() -> None:
    X, y = load_iris(return_X_y=True)
    parts = [Fed3RClassifier().fit(X[k::3], y[k::3]) for k in range(3)]
    assert np.array_equal(sum(parts).predict(X), Fed3RClassifier().fit(X, y).predict(X))  # type: ignore[attr-defined]


@every_class
def test_its_parameters_are_the_methods_options(made: Any) -> None:
    options = {one.name: one.default for one in made.method_type.options_type.keys().values()}
    several = {"means_per_class": 1, "samples_per_mean": 2} if Need.SEVERAL_MEANS in made.method_type.needs else {}
    assert made().get_params() == {**options, **several, "seed": 0} and all(name in made.__doc__ for name in options)


def test_several_means_of_one_fit_show_fedcof_the_covariance() -> None:
    features, labels = load_digits(return_X_y=True)
    few, many = (FedCOFClassifier(means_per_class=means).fit(features, labels) for means in (1, 10))
    assert many.score(features, labels) > few.score(features, labels) + 0.03


def test_random_features_are_those_of_scikit_learn() -> None:
    made = make_pipeline(RBFSampler(gamma=0.5, n_components=300, random_state=0), Fed3RClassifier())
    assert (made.fit(X, Y).predict(X) == Y).mean() > 0.95


def test_what_does_not_belong_together_is_refused() -> None:
    a, b, _ = fitted(FedNCMClassifier())
    with pytest.raises(ValueError, match=r"same parameters and features, got .* 4 features and .* 3"):
        a + FedNCMClassifier().fit(X[:, :3], Y)
    with pytest.raises(ValueError, match="same parameters"):
        a + Fed3RClassifier().fit(X, Y)
    with pytest.raises(ValueError, match="must be in the sum"):
        a - b
    with pytest.raises(TypeError):
        a + 1
    with pytest.raises(ValueError, match=r"ridge_lambda: must be a number in .*got -1"):
        Fed3RClassifier(ridge_lambda=-1).fit(X, Y)
