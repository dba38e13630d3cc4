"""Rounding on the wire costs no accuracy: features with a large common mean, a small ridge, few sites."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import LinearHead, solve_gaussian, solve_ridge
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply

NUM_CLASSES, DIM = 12, 96
SOLVERS = {
    "fed3r": lambda sums, ridge: solve_ridge(sums, ridge_lambda=ridge),
    "fedcgs": lambda sums, ridge: solve_gaussian(sums, covariance="within", shrinkage=ridge * 1e-3),
}


def drawn(seed: int, num_samples: int, common: float) -> tuple[Tensor, Tensor]:
    """Return features of length 1, most of whose energy lies in their mean and little in most directions."""
    fixed = torch.Generator().manual_seed(0)
    mean, centres = torch.randn(DIM, generator=fixed), torch.randn(NUM_CLASSES, DIM, generator=fixed)
    scales = torch.logspace(0, -3, DIM)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (num_samples,), generator=generator)
    features = common * mean + scales * (0.6 * centres[labels] + torch.randn(num_samples, DIM, generator=generator))
    return torch.nn.functional.normalize(features), labels


def received(num_sites: int, spec: StatisticsSpec, wire_dtype: str, seed: int, common: float) -> FeatureStatistics:
    """Return the sums of what sites sent that have unequal shares of the classes."""
    features, labels = drawn(seed, 1000, common)
    stray = torch.rand(1000, generator=torch.Generator().manual_seed(2)) < 0.1
    site = (labels * num_sites // NUM_CLASSES + stray) % num_sites
    request = StatisticsRequest(NUM_CLASSES, spec, wire_dtype=wire_dtype)
    total = StatisticsSum(NUM_CLASSES, DIM, gram=True, keep_rows=False)
    for number in range(num_sites):
        made = request.statistics(features[site == number], labels[site == number])
        total.add(read_statistics_reply(statistics_reply(instruction(request.to_content()), made), request).statistics)
    return total.summed()


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(
    num_sites=st.integers(1, 6),
    means_per_class=st.sampled_from([1, 3]),
    common=st.sampled_from([0.0, 1.0, 2.0, 4.0, 8.0]),
    ridge=st.sampled_from([1e-3, 1e-2, 0.1, 1.0]),
    seed=st.integers(0, 99),
)
def test_heads_lose_little(
    solver: str, num_sites: int, means_per_class: int, common: float, ridge: float, seed: int
) -> None:
    spec, (new, labels) = StatisticsSpec(gram=True, means_per_class=means_per_class), drawn(100 + seed, 1000, common)

    def head(wire_dtype: str) -> LinearHead:
        return SOLVERS[solver](received(num_sites, spec, wire_dtype, seed, common), ridge)

    single, half, few_bits = (head(wire_dtype).predict(new) for wire_dtype in ("float32", "float16", "int8"))
    accuracy = float((single == labels).double().mean())
    few, fewer = (0.1, 0.1) if common == 8.0 else (0.01, 0.05)  # there 99.8 % of the energy is the mean's
    assert float((half == single).double().mean()) >= 1.0 - 2 * few
    assert float((half == labels).double().mean()) == pytest.approx(accuracy, abs=few)
    if solver == "fed3r" or num_sites > 1:
        assert float((few_bits == labels).double().mean()) >= accuracy - fewer


@pytest.mark.parametrize("seed", range(3))
def test_fedcgs_of_one_site_alone_with_hardly_any_shrinkage_needs_more_than_int8(seed: int) -> None:
    new, labels = drawn(100 + seed, 1000, 1.0)
    single, few_bits = (
        SOLVERS["fedcgs"](received(1, StatisticsSpec(gram=True), dtype, seed, 1.0), 1e-3).predict(new)
        for dtype in ("float32", "int8")
    )
    loss = float((single == labels).double().mean() - (few_bits == labels).double().mean())
    assert 0.1 < loss < 0.3
