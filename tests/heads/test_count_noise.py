"""Noise on the counts: the golden federations, the distributions, and what becomes of the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import solve_fedcof
from fedstats_app.heads.fedcof import CountNoise, draw_noise, with_noise
from fedstats_app.methods import METHODS
from fedstats_app.methods.fedcof import FedCOFOptions
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.compare import absolute_difference
from tests.support.draws import Sample, samples
from tests.support.golden import Federation, tensor

KINDS: tuple[CountNoise, ...] = ("uniform", "gaussian", "laplace")


def test_golden_heads(federation: Federation) -> None:
    noisy = with_noise(federation.rows(), tensor(federation["noise_draw"]))
    kept = federation["noise_counts"][federation["noise_counts"] > 0]
    np.testing.assert_allclose(noisy.counts.numpy(), kept, rtol=1e-13)
    head = solve_fedcof(noisy, shrinkage=float(federation["gamma"]))
    assert absolute_difference(head.weight, federation["noise_W"]) <= 1e-10


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_the_distribution_that_it_is_named_for(kind: CountNoise, epsilon: float) -> None:
    counts, generator = torch.full((100_000,), 40), torch.Generator().manual_seed(3)
    drawn = draw_noise(kind, epsilon, counts, generator)
    deviations = {"uniform": 40 * (1 - epsilon) / math.sqrt(3), "gaussian": epsilon**-0.5, "laplace": 2**0.5 / epsilon}
    # Of 100,000 draws; a Laplace distribution's fourth moment makes its deviation the least certain, by 0.4%.
    assert float(drawn.std()) == pytest.approx(deviations[kind], rel=0.02)
    assert abs(float(drawn.mean())) < 4.5 * deviations[kind] / math.sqrt(len(counts))
    if kind == "uniform":
        assert float(drawn.abs().max()) <= 40 * (1 - epsilon)
    if kind == "laplace":
        assert float((drawn.abs() > 1 / epsilon).double().mean()) == pytest.approx(math.exp(-1), rel=0.03)


@given(samples(), st.lists(st.floats(-30, 30), min_size=30, max_size=30))
def test_means_stay_and_counts_below_zero_take_their_rows_away(sample: Sample, noise: list[float]) -> None:
    rows = StatisticsSpec().from_features(sample.features, sample.labels, sample.num_classes).rows
    added = torch.tensor(noise[: len(rows)], dtype=torch.float64)
    noisy, stay = with_noise(rows, added), rows.counts + added > 0
    assert torch.equal(noisy.class_ids, rows.class_ids[stay])
    assert torch.equal(noisy.counts, (rows.counts + added)[stay])
    torch.testing.assert_close(noisy.means, rows.means[stay], rtol=1e-12, atol=0)
    assert torch.equal(with_noise(rows, torch.zeros(len(rows))).counts, rows.counts.double())


def test_the_method_draws_by_its_own_seed() -> None:
    clients = Clients()
    total = StatisticsSum(NUM_CLASSES, clients.part(0)[0].shape[1], gram=False, keep_rows=True)
    for number in range(clients.num_clients):
        total.add(METHODS["fedcof"].configured().specification.from_features(*clients.part(number), NUM_CLASSES))

    def weight(**options: object) -> torch.Tensor:
        own = FedCOFOptions(shrinkage=1.0, **options)  # type: ignore[arg-type]
        return METHODS["fedcof"].configured(own).solve(total).weight

    plain, noisy = weight(), weight(count_noise="laplace")
    assert not torch.equal(plain, noisy) and torch.equal(noisy, weight(count_noise="laplace"))
    assert not torch.equal(noisy, weight(count_noise="laplace", count_noise_seed=1))
