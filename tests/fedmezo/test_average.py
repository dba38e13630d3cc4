"""The average of scalars: weights, order, the limit, divergence."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.fedmezo.average import Averaged, ScalarAverage

PAIRS = st.tuples(st.floats(-1e6, 1e6), st.integers(1, 1000))


def take(average: ScalarAverage, *pairs: tuple[float, int]) -> Averaged:
    return average.take({k: (value,) for k, (value, _) in enumerate(pairs)}, {k: n for k, (_, n) in enumerate(pairs)})


def mean(*pairs: tuple[float, int]) -> float:
    return take(ScalarAverage(clip=0.0), *pairs).means[0]


@given(st.lists(PAIRS, min_size=2, max_size=20))
def test_mean_is_exact_and_depends_neither_on_the_order_nor_on_the_partition(pairs: list[tuple[float, int]]) -> None:
    exact = sum(Fraction(value) * number for value, number in pairs) / sum(number for _, number in pairs)
    assert mean(*pairs) == pytest.approx(float(exact), rel=1e-12, abs=1e-9) and mean(*reversed(pairs)) == mean(*pairs)
    (first, n), (second, m), *rest = pairs
    merged = ((first * n + second * m) / (n + m), n + m)
    assert mean(*pairs) == pytest.approx(mean(merged, *rest), rel=1e-9, abs=1e-6)


def test_uniform_is_the_plain_mean() -> None:
    assert take(ScalarAverage("uniform"), (1.0, 1), (3.0, 99)).means == (2.0,)


def test_larger_scalars_are_cut_to_a_multiple_of_the_median_of_the_last() -> None:
    average = ScalarAverage(clip=10.0)
    taken = take(average, (1.0, 1), (-1.0, 1), (2.0, 1), (-1e9, 1))
    assert taken.sizes == (1.0, 1.0, 2.0, 1e9) and taken.means == ((1.0 - 1.0 + 2.0 - 15.0) / 4,)
    # A single client is measured by the rounds before, also in a training that continues.
    again = ScalarAverage(clip=10.0)
    again.limit(taken.sizes)
    assert take(average, (1e9, 1)) == take(again, (1e9, 1)) and again.limit([1.0]) < 100
    assert take(ScalarAverage(clip=10.0), (1e9, 1)).means == (1e9,)
    # Of two clients nobody can say which one lies.
    assert take(ScalarAverage(), (1.0, 10), (1e9, 10)).means == ((1.0 + 1e9) / 2,)


@pytest.mark.parametrize("option", [{"weighting": "equal"}, {"clip": -1.0}])
def test_other_options_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ScalarAverage(**option)  # type: ignore[arg-type]
