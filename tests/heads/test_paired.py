"""The sign test against the binomial distribution, summed term by term, McNemar's against scipy's."""

from fractions import Fraction
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedstats_app.heads.paired import paired_p_value, sign_test


@given(st.integers(0, 300), st.integers(0, 300))
def test_it_is_the_tail_of_fair_coins(wins: int, losses: int) -> None:
    total = wins + losses
    tail = Fraction(sum(comb(total, k) for k in range(wins, total + 1)), 2**total)
    assert sign_test(wins, losses) == pytest.approx(float(tail), rel=1e-9)


def test_many_comparisons_neither_overflow_nor_vanish_too_soon() -> None:
    assert sign_test(10**6, 10**6) == pytest.approx(0.5, abs=1e-3)
    assert sign_test(501_000, 499_000) == pytest.approx(0.02278, rel=1e-2)  # two standard deviations
    assert sign_test(10**6, 0) == 0.0


@pytest.mark.parametrize(("wins", "losses"), [(26, 9), (13, 6), (40, 21), (300, 250), (5, 5), (0, 0)])
def test_a_difference_of_samples_has_mcnemars_probability(wins: int, losses: int) -> None:
    exact = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert paired_p_value(torch.tensor([1] * wins + [-1] * losses + [0] * 5)) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("seed", range(2))
def test_a_difference_of_cells_is_about_as_probable_as_among_all_choices_of_signs(seed: int) -> None:
    differences = torch.randint(-5, 9, (14,), generator=torch.Generator().manual_seed(seed))
    sums = torch.zeros(1, dtype=torch.int64)
    for difference in differences:
        sums = torch.cat([sums + difference, sums - difference])
    expected = float((sums.abs() >= abs(int(differences.sum()))).double().mean())
    assert paired_p_value(differences) == pytest.approx(expected, abs=0.03)
