"""FedCOF's oracle and its noise on counts: the golden federations, eq. 24 written out, the distributions."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import solve_fedcof
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from research.baselines.fedcof_variants import CountNoise, Covariance, draw_noise, solve_oracle, with_noise
from tests.support.compare import absolute_difference
from tests.support.draws import Sample, samples
from tests.support.golden import FEDERATIONS, Federation, tensor
from tests.support.literal import oracle_gram, unit_rows

KINDS = ("random", "non-negative", "duplicates", "low rank")
SHAPES: dict[str, Covariance] = {"full": "full", "diag": "diagonal", "spherical": "spherical"}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_golden_heads(name: str) -> None:
    federation = Federation(name)
    gamma, statistics = float(federation["gamma"]), ClientStatistics(federation.rows(), federation.statistics().gram)
    for shape, covariance in SHAPES.items():
        head = solve_oracle(statistics, gamma, covariance)
        assert absolute_difference(head.weight, federation[f"oracle_{shape}_W"]) <= 1e-10
    noisy = with_noise(federation.rows(), tensor(federation["noise_draw"]))
    kept = federation["noise_counts"][federation["noise_counts"] > 0]
    np.testing.assert_allclose(noisy.counts.numpy(), kept, rtol=1e-13)
    assert absolute_difference(solve_fedcof(noisy, shrinkage=gamma).weight, federation["noise_W"]) <= 1e-10


@given(samples(kinds=KINDS), st.sampled_from(sorted(SHAPES)), st.sampled_from([0.5, 3.0]))
def test_the_oracle_is_the_formula_written_out(sample: Sample, shape: str, gamma: float) -> None:
    features, labels = (torch.cat([part[index] for part in sample.parts]).numpy() for index in (0, 1))
    features = features.astype(np.float64) / sample.scale  # in float32 the division would round, unlike the statistics
    clients = np.repeat(np.arange(len(sample.parts)), [len(part[1]) for part in sample.parts])
    if len(labels) <= len(np.unique(labels)):  # nothing but single samples: no ridge, and G may be singular
        return
    gram = oracle_gram(features, labels, clients, gamma, shape)  # type: ignore[arg-type]
    sums = np.zeros((sample.num_classes, features.shape[1]))
    np.add.at(sums, labels, features)
    spec = StatisticsSpec(gram=True)
    merged = reduce(add, [spec.from_features(*part, sample.num_classes) for part in sample.parts])
    head = solve_oracle(merged, gamma * sample.scale**2, SHAPES[shape])
    assert absolute_difference(head.weight, unit_rows(np.linalg.solve(gram, sums.T).T)) <= 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 0.9])
@pytest.mark.parametrize("kind", ["uniform", "gaussian", "laplace"])
def test_noise_has_the_distribution_that_it_is_named_for(kind: CountNoise, epsilon: float) -> None:
    counts, generator = torch.full((100_000,), 40), torch.Generator().manual_seed(3)
    drawn = draw_noise(kind, epsilon, counts, generator)
    deviations = {"uniform": 40 * (1 - epsilon) / math.sqrt(3), "gaussian": epsilon**-0.5, "laplace": 2**0.5 / epsilon}
    # Of 100,000 draws; a Laplace distribution's fourth moment makes its deviation the least certain, by 0.4%.
    assert float(drawn.std()) == pytest.approx(deviations[kind], rel=0.02)
    assert abs(float(drawn.mean())) < 4.5 * deviations[kind] / math.sqrt(len(counts))
    if kind == "uniform":
        assert float(drawn.abs().max()) <= 40 * (1 - epsilon)
