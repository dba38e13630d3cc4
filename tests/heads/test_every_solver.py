"""What holds for every closed-form head: finite on degenerate data, and the same for any split of the samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics
from tests.support.compare import absolute_difference
from tests.support.draws import Sample, samples

FROM_SUMS: dict[str, Callable[[FeatureStatistics], LinearHead]] = {
    "ncm": solve_ncm,
    "ridge": solve_ridge,
    "ridge 0": functools.partial(solve_ridge, ridge_lambda=0.0),
    "ridge auto": functools.partial(solve_ridge, ridge_lambda="auto"),
    "ridge bias": functools.partial(solve_ridge, fit_bias=True),
    "ridge bias auto": functools.partial(solve_ridge, fit_bias=True, ridge_lambda="auto"),
    "ridge raw": functools.partial(solve_ridge, normalize=False),
    "ridge within": functools.partial(solve_ridge, between_class=False),
    "ridge within 0": functools.partial(solve_ridge, between_class=False, ridge_lambda=0.0),
    "ridge within auto": functools.partial(solve_ridge, between_class=False, ridge_lambda="auto"),
    "ridge pinv32": functools.partial(solve_ridge, solver="pinv32"),
    "gaussian total": solve_gaussian,
    "gaussian within": functools.partial(solve_gaussian, covariance="within"),
    "gaussian total shrunk": functools.partial(solve_gaussian, shrinkage=1e-3),
    "gaussian within shrunk": functools.partial(solve_gaussian, covariance="within", shrinkage=1e-3),
}
FROM_ROWS: dict[str, Callable[[ClassMeanRows], LinearHead]] = {
    "fedcof": solve_fedcof,
    "fedcof 0": functools.partial(solve_fedcof, shrinkage=0.0),
    "fedcof auto": functools.partial(solve_fedcof, shrinkage="auto"),
    "fedcof infinite": functools.partial(solve_fedcof, shrinkage=math.inf),
    "fedcof between": functools.partial(solve_fedcof, between_class=True),
}
SOLVERS: dict[str, Callable[[ClientStatistics], LinearHead]] = {
    name: (lambda merged, solve=solve: solve(merged.summed())) for name, solve in FROM_SUMS.items()
} | {name: (lambda merged, solve=solve: solve(merged.rows)) for name, solve in FROM_ROWS.items()}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)


def _client(features: torch.Tensor, labels: torch.Tensor, num_classes: int) -> ClientStatistics:
    return ClientStatistics(
        ClassMeanRows.from_features(features, labels, num_classes),
        FeatureStatistics.from_features(features, labels, num_classes).gram,
    )


def _merged(sample: Sample) -> ClientStatistics:
    clients = [_client(*part, sample.num_classes) for part in sample.parts]
    return functools.reduce(ClientStatistics.__add__, clients)


def _check(head: LinearHead, sample: Sample) -> None:
    present = [c in set(sample.labels.tolist()) for c in range(sample.num_classes)]
    assert head.weight.dtype == head.bias.dtype == torch.float64
    assert head.weight.shape == (sample.num_classes, sample.features.shape[1])
    assert head.present.tolist() == present
    assert bool(torch.isfinite(head.weight).all()) and not bool(torch.isnan(head.bias).any())
    assert head.weight[~head.present].count_nonzero() == 0
    if any(present):
        predictions = head.predict(sample.features)
        assert all(present[c] for c in predictions.tolist())
    condition = head.report.condition_number
    assert condition is None or condition >= 0.99


@every_solver
@given(sample=samples())
def test_a_head_is_finite_whatever_the_samples(solve: Callable[[ClientStatistics], LinearHead], sample: Sample) -> None:
    _check(solve(_merged(sample)), sample)


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


@every_solver
@pytest.mark.parametrize("case", DEGENERATE)
def test_a_head_is_finite_in_named_degenerate_cases(solve: Callable[[ClientStatistics], LinearHead], case: str) -> None:
    _check(solve(_merged(DEGENERATE[case])), DEGENERATE[case])


@st.composite
def _well_posed(draw: st.DrawFn) -> Sample:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    labels = torch.randint(0, 4, (80,), generator=generator)
    features = torch.randn(4, 6, generator=generator)[labels] + torch.randn(80, 6, generator=generator)
    num_clients = draw(st.integers(1, 12))
    clients = torch.randint(0, num_clients, (80,), generator=generator)
    return Sample(features, labels, clients, 4, num_clients, "well posed", 1.0)


@pytest.mark.parametrize("solve", FROM_SUMS.values(), ids=FROM_SUMS)
@given(sample=_well_posed())
def test_heads_from_sums_do_not_depend_on_the_split(
    solve: Callable[[FeatureStatistics], LinearHead], sample: Sample
) -> None:
    split = solve(_merged(sample).summed())
    together = solve(FeatureStatistics.from_features(sample.features, sample.labels, 4))
    tolerance = 1e-3 if split.report.rank is not None else 1e-10  # only pinv32 has a rank here: it works in float32
    assert absolute_difference(split.weight, together.weight) <= tolerance
    fresh = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    assert split.predict(fresh).tolist() == together.predict(fresh).tolist()


@every_solver
@given(sample=_well_posed())
def test_the_same_statistics_give_the_same_bits(
    solve: Callable[[ClientStatistics], LinearHead], sample: Sample
) -> None:
    merged = _merged(sample)
    once, twice = solve(merged), solve(merged)
    assert torch.equal(once.weight, twice.weight) and torch.equal(once.bias, twice.bias)
    assert once.report == twice.report


@every_solver
def test_a_solver_leaves_the_statistics_alone(solve: Callable[[ClientStatistics], LinearHead]) -> None:
    merged = _merged(DEGENERATE["one sample per client"])
    assert merged.gram is not None
    before = [t.clone() for t in (merged.rows.class_ids, merged.rows.counts, merged.rows.class_sums, merged.gram)]
    solve(merged)
    after = [merged.rows.class_ids, merged.rows.counts, merged.rows.class_sums, merged.gram]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
