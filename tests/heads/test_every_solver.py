"""What holds for every method's head: finite on degenerate data, and the same for any split of the samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.methods import METHODS, Method
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.compare import absolute_difference
from tests.support.draws import Sample, samples
from tests.support.golden import Federation
from tests.support.options import configured

# The defaults of every method and what differs from them in one or two options.
CONFIGURED = {name: configured(name) for name in METHODS}
IN_ONE = {name: configured(name, pairs=False) for name in METHODS}
FROM_SUMS = [name for name, method in METHODS.items() if not method.keeps_rows]
every_method = pytest.mark.parametrize("name", METHODS)
# Each example is of one of a method's many options.
more_examples = settings(max_examples=3 * settings.default.max_examples)


def any_options(data: st.DataObject, name: str) -> Method[Any]:
    return data.draw(st.sampled_from(CONFIGURED[name]), label="options")


def _fold(clients: list[ClientStatistics], spec: StatisticsSpec) -> StatisticsSum:
    first, scatter = clients[0].rows, spec.scatter is not None
    merged = StatisticsSum(first.num_classes, first.feature_dim, gram=spec.gram, keep_rows=True, scatter=scatter)
    for client in clients:
        merged.add(client)
    return merged


def _merged(sample: Sample, spec: StatisticsSpec) -> StatisticsSum:
    return _fold([spec.from_features(*part, sample.num_classes, seed=3) for part in sample.parts], spec)


def _check(solve: Callable[[StatisticsSum], LinearHead], spec: StatisticsSpec, sample: Sample) -> None:
    head = solve(_merged(sample, spec))
    present = [c in set(sample.labels.tolist()) for c in range(sample.num_classes)]
    assert head.weight.dtype == head.bias.dtype == torch.float64
    assert head.weight.shape == (sample.num_classes, sample.features.shape[1]) and head.present.tolist() == present
    assert bool(torch.isfinite(head.weight).all()) and not bool(torch.isnan(head.bias).any())
    assert head.weight[~head.present].count_nonzero() == 0
    if any(present):
        assert all(present[c] for c in head.predict(sample.features).tolist())
    condition = head.report.condition_number
    assert condition is None or condition >= 0.99


@every_method
@more_examples
@given(sample=samples(), data=st.data())
def test_a_head_is_finite_whatever_the_samples(name: str, sample: Sample, data: st.DataObject) -> None:
    one = any_options(data, name)
    _check(one.head, one.specification, sample)


def _sample(features: torch.Tensor, labels: list[int], num_classes: int = 3, num_clients: int = 2) -> Sample:
    clients = torch.arange(len(labels)) % num_clients
    return Sample(features, torch.tensor(labels, dtype=torch.int64), clients, num_classes, num_clients, "named", 1.0)


GENERATOR = torch.Generator().manual_seed(0)
DEGENERATE = {
    "no sample": _sample(torch.zeros(0, 4), []),
    "one sample": _sample(torch.rand(1, 4, generator=GENERATOR), [1]),
    "one class": _sample(torch.rand(9, 4, generator=GENERATOR), [2] * 9),
    "as many samples as classes": _sample(torch.rand(3, 4, generator=GENERATOR), [0, 1, 2]),
    "two samples, 30 dimensions": _sample(torch.rand(2, 30, generator=GENERATOR), [0, 1]),
    "one client": _sample(torch.rand(12, 4, generator=GENERATOR), [0, 1, 2] * 4, num_clients=1),
    "one sample per client": _sample(torch.rand(12, 4, generator=GENERATOR), [0, 1, 2] * 4, num_clients=12),
    "classes on separate clients": _sample(torch.rand(12, 4, generator=GENERATOR), [0, 1] * 6, num_clients=2),
    "constant features": _sample(torch.full((12, 4), 0.3), [0, 1, 2] * 4),
    "zero features": _sample(torch.zeros(12, 4), [0, 1, 2] * 4),
    "huge features": _sample(torch.rand(12, 4, generator=GENERATOR) * 1e6, [0, 1, 2] * 4),
    "tiny features": _sample(torch.rand(12, 4, generator=GENERATOR) * 1e-6, [0, 1, 2] * 4),
    "the same sample in all classes": _sample(torch.rand(1, 4, generator=GENERATOR).repeat(12, 1), [0, 1, 2] * 4),
}


@every_method
@pytest.mark.parametrize("case", DEGENERATE)
def test_a_head_is_finite_in_named_degenerate_cases(name: str, case: str) -> None:
    for one in IN_ONE[name]:
        _check(one.head, one.specification, DEGENERATE[case])


@st.composite
def _well_posed(draw: st.DrawFn) -> Sample:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    labels = torch.randint(0, 4, (80,), generator=generator)
    features = torch.randn(4, 6, generator=generator)[labels] + torch.randn(80, 6, generator=generator)
    num_clients = draw(st.integers(1, 12))
    clients = torch.randint(0, num_clients, (80,), generator=generator)
    return Sample(features, labels, clients, 4, num_clients, "well posed", 1.0)


@pytest.mark.parametrize("name", FROM_SUMS)
@settings(max_examples=2 * settings.default.max_examples)
@given(sample=_well_posed(), data=st.data())
def test_heads_from_sums_do_not_depend_on_the_split(name: str, sample: Sample, data: st.DataObject) -> None:
    one = any_options(data, name)
    spec = one.specification
    split = one.head(_merged(sample, spec))
    together = one.head(_fold([spec.from_features(sample.features, sample.labels, 4)], spec))
    tolerance = 1e-3 if split.report.rank is not None else 1e-10  # only pinv32 has a rank here: it works in float32
    assert absolute_difference(split.weight, together.weight) <= tolerance
    fresh = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    assert split.predict(fresh).tolist() == together.predict(fresh).tolist()


@every_method
@settings(max_examples=8)
@given(sample=_well_posed(), data=st.data())
def test_the_same_statistics_give_the_same_bits(name: str, sample: Sample, data: st.DataObject) -> None:
    one = any_options(data, name)
    merged = _merged(sample, one.specification)
    once, twice = one.head(merged), one.head(merged)
    assert torch.equal(once.weight, twice.weight) and torch.equal(once.bias, twice.bias)
    assert once.report == twice.report


@every_method
def test_a_solver_leaves_the_statistics_alone(name: str) -> None:
    for one in IN_ONE[name]:
        merged = _merged(DEGENERATE["one sample per client"], one.specification)
        own = merged._total
        tensors = [own.class_counts, own.class_sums, merged.rows().counts, merged.rows().class_sums]
        tensors += [matrix for matrix in (own.gram, merged._scatter) if matrix is not None]
        before = [tensor.clone() for tensor in tensors]
        one.head(merged)
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize(
    ("key", "solve", "tolerance"),
    [
        ("ncm", lambda federation, clients: solve_ncm(federation.statistics(clients)), 1e-12),
        ("cof", lambda f, clients: solve_fedcof(f.rows(clients), shrinkage=float(f["gamma"])), 1e-10),
        ("fed3r", lambda f, clients: solve_ridge(f.statistics(clients), ridge_lambda=0.01), 1e-9),
    ],
)
def test_partial_participation_gives_the_head_of_the_clients_seen(
    federation: Federation, key: str, solve: Callable[[Federation, list[int]], LinearHead], tolerance: float
) -> None:
    for last in range(int(federation["pp_round"].max()) + 1):
        clients = [k for k in range(federation.num_clients) if federation["pp_round"][k] <= last]
        assert absolute_difference(solve(federation, clients).weight, federation[f"pp_{key}_W_{last}"]) <= tolerance


SUMS = FeatureStatistics.zeros(2, 3)
ROWS = ClassMeanRows(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.ones(2, 3), 2)
NO_GRAM = FeatureStatistics.zeros(2, 3, gram=False)


@pytest.mark.parametrize(
    ("solve", "data", "options", "message"),
    [
        (solve_ridge, SUMS, {"ridge_lambda": -0.1}, r'must be a finite number >= 0 or "auto", got -0.1'),
        (solve_ridge, SUMS, {"ridge_lambda": "best"}, r"ridge_lambda must be.*got 'best'"),
        (solve_ridge, SUMS, {"fit_bias": True, "between_class": False}, "fit_bias is defined with between-class"),
        (solve_ridge, NO_GRAM, {}, "needs statistics with a Gram matrix, got gram=None"),
        (solve_gaussian, SUMS, {"shrinkage": float("inf")}, r'must be a finite number >= 0 or "auto", got inf'),
        (solve_fedcof, ROWS, {"shrinkage": float("nan")}, r'shrinkage must be a number >= 0 or "auto", got'),
    ],
)
def test_bad_input_is_refused(
    solve: Callable[..., LinearHead], data: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        solve(data, **options)
