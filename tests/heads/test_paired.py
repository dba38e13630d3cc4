"""The sign test: against the binomial distribution, summed term by term."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads.paired import sign_test


@given(st.integers(0, 300), st.integers(0, 300))
def test_it_is_the_tail_of_fair_coins(wins: int, losses: int) -> None:
    total = wins + losses
    tail = Fraction(sum(comb(total, k) for k in range(wins, total + 1)), 2**total)
    assert sign_test(wins, losses) == pytest.approx(float(tail), rel=1e-9)


def test_many_comparisons_neither_overflow_nor_vanish_too_soon() -> None:
    assert sign_test(10**6, 10**6) == pytest.approx(0.5, abs=1e-3)
    assert sign_test(501_000, 499_000) == pytest.approx(0.02278, rel=1e-2)  # two standard deviations
    assert sign_test(10**6, 0) == 0.0
