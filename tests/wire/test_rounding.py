"""Rounding on the wire costs no accuracy: features with a large common mean, a small ridge, few sites."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedstats_app.heads.gaussian import solve_gaussian
from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply

NUM_CLASSES, DIM = 12, 96
SOLVERS = {
    "fed3r": lambda sums: solve_ridge(sums, ridge_lambda=1e-3),
    "fedcgs": lambda sums: solve_gaussian(sums, covariance="within", shrinkage=1e-6),
}


def drawn(seed: int, num_samples: int) -> tuple[Tensor, Tensor]:
    """Return features of length 1, most of whose energy lies in their mean and little in most directions."""
    fixed = torch.Generator().manual_seed(0)
    common, centres = torch.randn(DIM, generator=fixed), torch.randn(NUM_CLASSES, DIM, generator=fixed)
    scales = torch.logspace(0, -3, DIM)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (num_samples,), generator=generator)
    noise = torch.randn(num_samples, DIM, generator=generator)
    features = 4.0 * common + scales * (0.6 * centres[labels] + noise)
    return torch.nn.functional.normalize(features), labels


def federated(num_sites: int, spec: StatisticsSpec, wire_dtype: str) -> StatisticsSum:
    """Return the sum of what sites sent that have unequal shares of the classes."""
    features, labels = drawn(1, 1000)
    site = (
        labels * num_sites // NUM_CLASSES + (torch.rand(1000, generator=torch.Generator().manual_seed(2)) < 0.1)
    ) % (num_sites)
    request = StatisticsRequest(NUM_CLASSES, spec, wire_dtype=wire_dtype)
    total = StatisticsSum(NUM_CLASSES, DIM, gram=True, keep_rows=False)
    for number in range(num_sites):
        made = request.statistics(features[site == number], labels[site == number])
        reply = statistics_reply(instruction(request.to_content()), made)
        total.add(read_statistics_reply(reply, request).statistics)
    return total


def accuracy(head: LinearHead) -> float:
    features, labels = drawn(3, 2000)
    return float((head.predict(features.double()) == labels).double().mean())


@pytest.mark.parametrize("means_per_class", [1, 3])
@pytest.mark.parametrize("num_sites", [2, 5])
@pytest.mark.parametrize("solver", SOLVERS)
def test_heads_lose_nothing_in_half_precision_and_little_in_int8(
    solver: str, num_sites: int, means_per_class: int
) -> None:
    spec = StatisticsSpec(gram=True, means_per_class=means_per_class)
    found = {
        wire_dtype: accuracy(SOLVERS[solver](federated(num_sites, spec, wire_dtype).summed()))
        for wire_dtype in ("float64", "float32", "float16", "int8")
    }

    assert found["float64"] > 0.9
    assert found["float32"] == pytest.approx(found["float64"], abs=0.001)
    assert found["float16"] == pytest.approx(found["float64"], abs=0.005)
    assert found["int8"] >= found["float64"] - 0.03
