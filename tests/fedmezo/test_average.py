"""The average of scalars: weights, order, the limit, divergence."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.fedmezo.average import ScalarAverage, TrainingDiverged
from fedstats_app.wire.mezo import MezoReply

PAIRS = st.tuples(st.floats(-1e6, 1e6), st.integers(1, 1000))


def answers(*pairs: tuple[float, int]) -> dict[int, MezoReply]:
    return {client: MezoReply((value,), number, b"") for client, (value, number) in enumerate(pairs)}


def mean(*pairs: tuple[float, int], weighting: str = "examples") -> float:
    return ScalarAverage(weighting, clip=0.0).take(answers(*pairs)).means[0]  # type: ignore[arg-type]


@given(st.lists(PAIRS, min_size=1, max_size=20))
def test_mean_is_exact_and_does_not_depend_on_the_order(pairs: list[tuple[float, int]]) -> None:
    exact = sum(Fraction(value) * number for value, number in pairs) / sum(number for _, number in pairs)
    assert mean(*pairs) == pytest.approx(float(exact), rel=1e-12, abs=1e-9)
    assert mean(*reversed(pairs)) == mean(*pairs)


@given(st.lists(PAIRS, min_size=2, max_size=10))
def test_clients_that_merge_change_nothing(pairs: list[tuple[float, int]]) -> None:
    (first, n), (second, m), *rest = pairs
    merged = ((first * n + second * m) / (n + m), n + m)
    assert mean(*pairs) == pytest.approx(mean(merged, *rest), rel=1e-9, abs=1e-6)


def test_uniform_is_the_plain_mean() -> None:
    assert mean((1.0, 1), (3.0, 99), weighting="uniform") == 2.0
    assert mean((1.0, 1), (3.0, 99)) == 2.98


def test_larger_scalars_are_cut_to_a_multiple_of_the_median_of_the_last() -> None:
    average = ScalarAverage(clip=10.0)
    taken = average.take(answers((1.0, 1), (-1.0, 1), (2.0, 1), (-1e9, 1)))
    assert taken.clipped == (3,) and taken.sizes == (1.0, 1.0, 2.0, 1e9)
    assert taken.means == ((1.0 - 1.0 + 2.0 - 15.0) / 4,)
    # One client alone is measured by the rounds before, also in a training that continues.
    again = ScalarAverage(clip=10.0)
    again.limit(taken.sizes)
    assert average.take(answers((1e9, 1))) == again.take(answers((1e9, 1)))
    assert again.limit([1.0]) < 100
    assert ScalarAverage(clip=10.0).take(answers((1e9, 1))).means == (1e9,)


def test_of_two_clients_nobody_can_say_who_lies() -> None:
    assert not ScalarAverage().take(answers((1.0, 10), (1e9, 10))).clipped


def test_scalars_that_explode_end_the_training() -> None:
    average = ScalarAverage()
    for size in [1.0] * 10 + [1e5] * 4 + [1.0] + [1e5] * 4:  # a single calm round is enough to begin counting anew
        average.take(answers((size, 1)))
    with pytest.raises(TrainingDiverged, match=r"for 5 rounds .* over 10000 times"):
        average.take(answers((1e5, 1)))


def test_other_options_are_refused() -> None:
    with pytest.raises(ValueError, match="weighting must be examples or uniform, got 'equal'"):
        ScalarAverage("equal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip must be at least 0, got -1"):
        ScalarAverage(clip=-1)
