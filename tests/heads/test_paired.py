"""The sign test against the binomial distribution, summed term by term; the sign-flip test against all signs."""

import itertools
import math
from fractions import Fraction
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedstats_app.heads.paired import flip_test, sign_test


@given(st.integers(0, 300), st.integers(0, 300))
def test_it_is_the_tail_of_fair_coins(wins: int, losses: int) -> None:
    total = wins + losses
    tail = Fraction(sum(comb(total, k) for k in range(wins, total + 1)), 2**total)
    assert sign_test(wins, losses) == pytest.approx(float(tail), rel=1e-9)


def test_many_comparisons_neither_overflow_nor_vanish_too_soon() -> None:
    assert sign_test(10**6, 10**6) == pytest.approx(0.5, abs=1e-3)
    assert sign_test(501_000, 499_000) == pytest.approx(0.02278, rel=1e-2)  # two standard deviations
    assert sign_test(10**6, 0) == 0.0


@given(st.lists(st.integers(-9, 9), max_size=9))
def test_a_sum_is_as_probable_as_among_all_choices_of_signs(differences: list[int]) -> None:
    found = flip_test(torch.tensor(differences, dtype=torch.int64))

    sums = [abs(sum(signed)) for signed in itertools.product(*([-one, one] for one in differences))]
    expected = sum(one >= abs(sum(differences)) for one in sums) / len(sums)
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40))
def test_of_single_samples_it_is_mcnemars_whatever_a_larger_cell_without_difference_adds(
    wins: int, losses: int, size: int
) -> None:
    ones = torch.tensor([1] * wins + [-1] * losses + [0])
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert flip_test(ones) == pytest.approx(expected, rel=1e-9)
    assert flip_test(size * ones) == pytest.approx(expected, abs=1e-12)


def test_thousands_of_cells_take_no_longer_than_their_sizes() -> None:
    draw = torch.Generator().manual_seed(0)
    cells = torch.randint(-30, 31, (20_000,), generator=draw)
    spread = float(cells.square().sum().sqrt())
    expected = math.erfc(abs(int(cells.sum())) / spread / math.sqrt(2))
    assert flip_test(cells) == pytest.approx(expected, rel=0.02)
    assert flip_test(torch.full((64,), 5)) == pytest.approx(2.0**-63, abs=1e-12)
