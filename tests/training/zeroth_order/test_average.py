"""The average of scalars: weights, order, cuts, divergence."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.training.zeroth_order.average import RateGuard, ScalarAverage, TrainingDiverged
from fedstats_app.wire.mezo import MezoReply

FINITE = st.floats(-1e6, 1e6)


def answers(*pairs: tuple[float, int]) -> dict[int, MezoReply]:
    return {client: MezoReply((value,), number, b"") for client, (value, number) in enumerate(pairs)}


@given(st.lists(st.tuples(FINITE, st.integers(1, 1000)), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_mean_is_exact_and_does_not_depend_on_the_order(pairs: list[tuple[float, int]], random: object) -> None:
    average = ScalarAverage()
    (mean,) = average.mean(answers(*pairs))
    total = sum(number for _, number in pairs)
    exact = sum(Fraction(value) * number for value, number in pairs) / total
    assert mean == pytest.approx(float(exact), rel=1e-12, abs=1e-9)
    assert average.mean(dict(reversed(answers(*pairs).items()))) == [mean]


@given(st.lists(st.tuples(FINITE, st.integers(1, 50)), min_size=2, max_size=10))
def test_clients_that_merge_change_nothing(pairs: list[tuple[float, int]]) -> None:
    """A client that holds the data of two has their weighted mean: the average stays."""
    (first, n), (second, m), *rest = pairs
    merged = ((first * n + second * m) / (n + m), n + m)
    (apart,), (together,) = ScalarAverage().mean(answers(*pairs)), ScalarAverage().mean(answers(merged, *rest))
    assert apart == pytest.approx(together, rel=1e-9, abs=1e-6)


def test_uniform_is_the_plain_mean() -> None:
    assert ScalarAverage("uniform").mean(answers((1.0, 1), (3.0, 99))) == [2.0]
    assert ScalarAverage("examples").mean(answers((1.0, 1), (3.0, 99))) == [2.98]


def test_what_is_out_of_proportion_is_cut_to_a_multiple_of_the_median() -> None:
    average = ScalarAverage(clip=10.0)
    means, clipped = average.take(answers((1.0, 1), (-1.0, 1), (2.0, 1), (-1e9, 1)))
    assert clipped == (3,)
    assert means == [(1.0 - 1.0 + 2.0 - 15.0) / 4]
    # It is the median of all that came so far: one client alone is measured by the rounds before.
    assert average.take(answers((1e9, 1)))[0][0] < 100
    assert ScalarAverage(clip=10.0).take(answers((1e9, 1))) == ([1e9], ())
    assert ScalarAverage(clip=0.0).take(answers((1.0, 1), (1e9, 1)))[1] == ()


def test_scalars_that_explode_end_the_training() -> None:
    average = ScalarAverage(clip=0.0)
    for _ in range(10):
        average.take(answers((1.0, 1)))
    for _ in range(4):
        average.take(answers((1e5, 1)))
    average.take(answers((1.0, 1)))  # a single calm round is enough to begin counting anew
    for _ in range(4):
        average.take(answers((1e5, 1)))
    with pytest.raises(TrainingDiverged, match=r"for 5 rounds .* over 10000 times"):
        average.take(answers((1e5, 1)))


@pytest.mark.parametrize("options", [{"weighting": "square"}, {"clip": -1.0}, {"clip": math.inf}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="weighting must be one of examples, uniform and clip at least 0"):
        ScalarAverage(**options)  # type: ignore[arg-type]


def test_the_rate_is_halved_when_the_slope_suddenly_grows() -> None:
    guard = RateGuard()
    assert guard.take([100.0, 0.0]) == ([100.0, 0.0], False)  # the first rounds say what is usual
    for _ in range(9):
        assert guard.take([3.0, 4.0]) == ([3.0, 4.0], False)
    usual = math.sqrt((9 + 16) / 2)
    means, grown = guard.take([-300.0, 400.0])
    assert grown
    assert means == pytest.approx([-3.0 * 8, 4.0 * 8])
    assert guard.take([8.0 * usual] * 2) == ([8.0 * usual] * 2, False)
    assert guard.cuts == 1


def test_chance_does_not_halve_the_rate() -> None:
    draw, guard = random.Random(0), RateGuard()
    for _ in range(20_000):
        guard.take([draw.gauss(0, 1)])
    assert guard.cuts == 0


def test_a_slope_of_nothing_is_no_measure() -> None:
    guard = RateGuard()
    for _ in range(10):
        guard.take([0.0])
    assert guard.take([1.0]) == ([1.0], False)
