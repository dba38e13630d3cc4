"""Canaries: the whole release as it is does not tell one sample more than promised, and broken noise is found out."""

import numpy as np
import pytest

from fedstats_app.secure.account import mu_of
from fedstats_app.statistics.noisy_words import NoisyLayout
from research.noise.audit import lower_bound, scores

DELTA = 1e-3


def audited(mu: float, runs: int) -> tuple[float, float]:
    """Return the lower bound, and how far apart the scores are in standard deviations, of two parties' noise."""
    layout = NoisyLayout(2, 4, moments=True, mu=mu)
    absent, present = (scores(runs, layout, parties=2, seed=1, present=there) for there in (False, True))
    return lower_bound(absent, present, DELTA), float((present.mean() - absent.mean()) / absent.std())


def test_integer_shares_keep_the_promise_and_use_it_up() -> None:
    mu = mu_of(4.0, DELTA)
    bound, found = audited(mu, 600)
    assert 0.5 < bound <= 4.0 and found == pytest.approx(mu, rel=0.15)


def test_noise_of_a_sixth_is_found_out() -> None:
    assert audited(6 * mu_of(1.0, DELTA), 250)[0] > 1.0


def test_the_bound_of_known_distributions() -> None:
    draw = np.random.default_rng(0)
    absent, present = draw.normal(size=20_000), draw.normal(size=20_000)
    assert lower_bound(absent, present, DELTA) < 0.05
    assert 1.2 < lower_bound(absent, present + mu_of(2.0, DELTA), DELTA) <= 2.0
    assert lower_bound(np.zeros(10), np.ones(10), 0.5) == 0.0  # too few to say anything
