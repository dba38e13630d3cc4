"""The automatic learning rate: what halves it, what does not, and how it comes back."""

from __future__ import annotations

import math
import random

import pytest

from fedstats_app.fedmezo.average import RateGuard


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
