"""The account: epsilon and delta against an integral, published noise, and answers that compose."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.secure.account import composed, delta_of, epsilon_of, mu_of

MUS = st.floats(0.01, 20.0)


@pytest.mark.parametrize(("epsilon", "deviation"), [(8, 0.60), (3, 1.39), (1, 3.73), (0.3, 11.2), (0.1, 30.8)])
def test_the_noise_at_delta_1e_minus_5(epsilon: float, deviation: float) -> None:
    assert 1 / mu_of(epsilon, 1e-5) == pytest.approx(deviation, rel=0.01)


@pytest.mark.parametrize("mu", [0.05, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 2.0, 30.0])
def test_delta_is_what_the_larger_density_has_more(mu: float, epsilon: float) -> None:
    """By the definition: the integral of p - exp(epsilon) q where it is positive, p and q normal and mu apart."""
    start = mu / 2 + epsilon / mu  # where both are equal
    x = np.linspace(start, start + 40, 400_001)
    excess = np.exp(-((x - mu) ** 2) / 2) * -np.expm1(epsilon + mu * (mu / 2 - x)) / math.sqrt(2 * math.pi)
    assert delta_of(epsilon, mu) == pytest.approx(float(np.trapezoid(excess, x)), rel=1e-6, abs=1e-300)


def test_answers_in_turn_are_one_of_the_root_of_the_sum_of_squares() -> None:
    """Losses of answers add: their distributions, one by one, and what is above epsilon of the sum."""
    mus, step = (0.5, 0.8, 0.3), 1e-2
    losses = np.arange(-2000, 2001) * step
    one = np.ones(1)
    for mu in mus:
        loss = np.exp(-((losses - mu**2 / 2) ** 2) / (2 * mu**2))
        one = np.convolve(one, loss * step / (mu * math.sqrt(2 * math.pi)))
        middle = len(one) // 2
        one = one[middle - 2000 : middle + 2001]
    for epsilon in (0.5, 1.0, 3.0):
        excess = float((np.maximum(-np.expm1(epsilon - losses), 0) * one).sum())
        assert delta_of(epsilon, composed(mus)) == pytest.approx(excess, rel=1e-3)
    assert composed([]) == 0.0


@given(MUS, st.floats(1e-12, 0.5))
def test_epsilon_and_mu_undo_each_other_and_never_promise_more_than_holds(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    if epsilon == 0:
        assert delta_of(0.0, mu) <= delta
        return
    assert delta_of(epsilon, mu) <= delta
    if epsilon > 1e-3:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert delta_of(epsilon, mu_of(epsilon, delta)) <= delta


@given(MUS, MUS, st.floats(0.0, 50.0))
def test_less_noise_and_a_smaller_epsilon_need_a_larger_delta(mu: float, other: float, epsilon: float) -> None:
    low, high = sorted((mu, other))
    assert 0 <= delta_of(epsilon, low) <= delta_of(epsilon, high) <= 1
    assert delta_of(epsilon + 1, high) <= delta_of(epsilon, high)


def test_far_ends_stay_finite() -> None:
    assert 20 < mu_of(1000.0, 1e-300) < 22
    assert delta_of(0.1, 100.0) == 1.0 and delta_of(900.0, 1e-3) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: mu_of(0.0, 1e-5),
        lambda: mu_of(math.nan, 1e-5),
        lambda: mu_of(1e4, 1e-5),
        lambda: mu_of(1.0, 0.0),
        lambda: mu_of(1.0, 1.0),
        lambda: epsilon_of(0.0, 1e-5),
        lambda: epsilon_of(1.0, math.nan),
        lambda: delta_of(math.inf, 1.0),
    ],
)
def test_what_is_no_promise_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()  # type: ignore[operator]
