"""The average of scalars: weights, order, cuts, divergence."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.strategies.mezo_average import ScalarAverage, TrainingDiverged
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
