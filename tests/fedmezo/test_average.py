"""The average of scalars, and the learning rate: weights, order, cuts, divergence, what halves the rate."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.fedmezo.average import RateGuard, ScalarAverage, TrainingDiverged
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


def gaussian(draw: random.Random, sizes: Sequence[float], counts: Sequence[int]) -> dict[int, MezoReply]:
    """Scalars of clients whose gradients have these lengths."""
    return answers(*((draw.gauss(0, size), count) for size, count in zip(sizes, counts, strict=True)))


@pytest.mark.parametrize("times", [-10.0, -100.0, 1e30])
@pytest.mark.parametrize("num_clients", [10, 100])
def test_who_lies_out_of_proportion_is_left_out_and_nobody_else(times: float, num_clients: int) -> None:
    draw, average = random.Random(num_clients), ScalarAverage()
    # Honest ones differ: by a factor of 4 where they have as many samples, and more where they have few or one.
    sizes = [draw.uniform(0.5, 2.0) for _ in range(num_clients)]
    counts = [draw.choice((1, 5, 50, 500)) for _ in range(num_clients)]
    sizes[3], counts[3] = times, 139
    left_out = [average.take(gaussian(draw, sizes, counts)).left_out for _ in range(200)]
    rounds_to_notice = 60 if times == -10.0 else 3
    assert all(set(one) <= {3} for one in left_out)
    assert sum(3 in one for one in left_out[rounds_to_notice:]) >= 0.9 * (200 - rounds_to_notice)


def test_honest_clients_are_not_left_out_and_change_nothing() -> None:
    draw, average = random.Random(0), ScalarAverage(clip=0.0)
    sizes, counts = [0.1, 1.0, 1.0, 2.0, 3.0, 8.0], [40, 40, 30, 30, 2000, 3]
    for _ in range(2000):
        given = gaussian(draw, sizes, counts)
        taken = average.take(given)
        assert not taken.left_out and not taken.clipped and list(taken.means) == average.mean(given)


def test_around_what_is_foretold_honest_clients_keep_all_and_a_liar_less() -> None:
    """Ten clients, and what is foretold of a gradient is ten times the rest of it; one says the opposite of all."""
    draw = random.Random(5)
    foretelling, plain, errors = ScalarAverage(clip=3.0), ScalarAverage(clip=3.0), [list[float](), list[float]()]
    for _ in range(300):
        foretold = [draw.gauss(0, 10) for _ in range(10)]
        said = [one + draw.gauss(0, 1) for one in foretold]
        mean = math.fsum(said) / 10
        given = {client: (one,) for client, one in enumerate(foretold)}
        honest = ScalarAverage(clip=0.0).take(answers(*((one, 10) for one in said)), given)
        assert honest.means[0] == pytest.approx(mean, abs=1e-12) and not honest.left_out
        said[3] = -math.copysign(25.0, mean)
        for average, known, found in zip((foretelling, plain), (given, {}), errors, strict=True):
            taken = average.take(answers(*((one, 10) for one in said)), known)
            assert set(taken.left_out) <= {3}
            found.append(abs(taken.means[0] - mean))
    assert math.fsum(errors[0]) < 0.5 * math.fsum(errors[1])


def test_a_single_spike_is_forgotten() -> None:
    draw, average = random.Random(1), ScalarAverage()
    for _ in range(100):
        average.take(gaussian(draw, [1.0] * 5, [10] * 5))
    spike = answers(*((1e9 if client == 2 else 1.0, 10) for client in range(5)))
    assert set(average.take(spike).left_out) == {2}
    assert not any(average.take(gaussian(draw, [1.0] * 5, [10] * 5)).left_out for _ in range(100))


def test_of_two_clients_nobody_can_say_who_lies() -> None:
    taken = ScalarAverage().take(answers((1.0, 10), (1e9, 10)))
    assert not taken.left_out
    assert ScalarAverage(outlier=0.0).take(answers((1.0, 10), (1.0, 10), (1e9, 10))).left_out == {}


def test_larger_scalars_are_cut_to_a_multiple_of_the_median_of_the_last() -> None:
    average = ScalarAverage(clip=10.0, outlier=0.0)
    taken = average.take(answers((1.0, 1), (-1.0, 1), (2.0, 1), (-1e9, 1)))
    assert taken.clipped == (3,)
    assert taken.means == ((1.0 - 1.0 + 2.0 - 15.0) / 4,)
    # It is the median of all that came so far: one client alone is measured by the rounds before.
    assert average.take(answers((1e9, 1))).means[0] < 100
    assert ScalarAverage(clip=10.0).take(answers((1e9, 1))).means == (1e9,)
    assert ScalarAverage(clip=0.0).take(answers((1.0, 1), (1e9, 1))).clipped == ()


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


def usual(guard: RateGuard, rounds: int, draw: random.Random | None = None) -> list[float]:
    """Play rounds of ordinary slopes; return the changes of the rate."""
    return [guard.take([3.0, 4.0] if draw is None else [draw.gauss(0, 5)])[1] for _ in range(rounds)]


def test_a_single_spike_is_cut_and_halves_the_rate_for_fifty_rounds_only() -> None:
    guard = RateGuard()
    assert guard.take([100.0, 0.0]) == ((100.0, 0.0), 1.0)  # the first rounds say what is usual
    assert usual(guard, 9) == [1.0] * 9
    means, change = guard.take([-3e9, 4e9])
    assert means == pytest.approx([-3.0 * 8, 4.0 * 8])
    assert change == 0.5
    assert usual(guard, 200) == [1.0] * 49 + [2.0] + [1.0] * 150


def test_slopes_that_stay_large_halve_the_rate_again_and_calm_brings_all_of_it_back() -> None:
    guard = RateGuard()
    usual(guard, 10)
    changes = [guard.take([3e3, 4e3])[1] for _ in range(3)]
    assert changes == [0.5, 0.5, 0.5]
    after = usual(guard, 200)
    assert [number for number, change in enumerate(after, start=1) if change != 1.0] == [50, 100, 150]
    assert math.prod(changes + after) == 1.0


def test_a_rate_that_is_raised_too_early_is_raised_later_the_next_time() -> None:
    guard, waited = RateGuard(), list[int]()
    usual(guard, 10)
    for _ in range(4):
        assert guard.take([3e3, 4e3])[1] == 0.5
        changes = usual(guard, 500)
        waited.append(changes.index(2.0) + 1)
    assert waited == [50, 100, 200, 400]


def test_chance_does_not_halve_the_rate() -> None:
    assert set(usual(RateGuard(), 20_000, random.Random(0))) == {1.0}


def test_a_slope_of_nothing_is_no_measure() -> None:
    guard = RateGuard()
    for _ in range(10):
        guard.take([0.0])
    assert guard.take([1.0]) == ((1.0,), 1.0)


def test_what_was_cut_counts_as_grown_when_a_log_gives_it_back() -> None:
    """A guard that is fed with what another one let through ends in the same state."""
    draw, first, again = random.Random(3), RateGuard(), RateGuard()
    for number in range(300):
        means, change = first.take([draw.gauss(0, 50.0 if 100 <= number < 104 else 1.0)])
        rate = 0.37
        assert again.take([rate * means[0] / rate])[1] == change
