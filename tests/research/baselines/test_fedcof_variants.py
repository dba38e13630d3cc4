"""FedCOF's oracle and its noise on counts: the golden federations, eq. 24 written out, the distributions."""

import math

import numpy as np
import pytest
import torch

from fedstats_app.heads import solve_fedcof
from fedstats_app.statistics import ClientStatistics
from research.baselines.fedcof_variants import CountNoise, Covariance, draw_noise, solve_oracle, with_noise
from tests.support.compare import absolute_difference
from tests.support.golden import FEDERATIONS, Federation, tensor

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
