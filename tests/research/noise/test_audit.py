"""Canaries: the whole release as it is does not tell one sample more than promised, and broken noise is found out."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from fedstats_app.secure.account import mu_of
from research.noise.audit import lower_bound, scores, shares
from research.noise.mechanism import Noise

DELTA = 1e-3


def audited(epsilon: float, noise: Noise, runs: int) -> tuple[float, float]:
    """Return the lower bound, and how far apart the scores are in standard deviations."""
    mu = mu_of(epsilon, DELTA)
    absent, present = (scores(runs, mu, noise, present=there) for there in (False, True))
    return lower_bound(absent, present, DELTA), float((present.mean() - absent.mean()) / absent.std())


def test_integer_shares_keep_the_promise_and_use_it_up() -> None:
    bound, found = audited(4.0, shares(10, 16.0, seed=1), 1200)
    assert 1.0 < bound <= 4.0
    assert found == pytest.approx(mu_of(4.0, DELTA), rel=0.12)


def test_noise_of_a_quarter_is_found_out() -> None:
    noise = shares(10, 16.0, seed=1)

    def quarter(values: Tensor, deviation: float) -> Tensor:
        return noise(values, deviation / 4)

    assert audited(1.0, quarter, 500)[0] > 1.0


def test_the_bound_of_known_distributions() -> None:
    draw = np.random.default_rng(0)
    absent, present = draw.normal(size=20_000), draw.normal(size=20_000)
    assert lower_bound(absent, present, DELTA) < 0.05
    mu = mu_of(2.0, DELTA)
    assert 1.2 < lower_bound(absent, present + mu, DELTA) <= 2.0
    assert lower_bound(np.zeros(10), np.ones(10), 0.5) == 0.0  # too few to say anything
