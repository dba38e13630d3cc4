"""What is usual among clients, who alone decides, and caps on shares."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.training.proportion import allowances, capped, deciding, largest_share, usual_size

COUNTS = st.lists(st.integers(1, 10**6), min_size=1, max_size=30).map(lambda counts: dict(enumerate(counts)))


def test_the_usual_size_is_one_that_a_quarter_of_liars_cannot_move_beyond_the_honest() -> None:
    assert usual_size([1.0, 2.0, 3.0, 4.0]) == usual_size([4.0, 1.0, 3.0, 2.0]) == 3.0
    assert usual_size([1.0, 2.0, 1e9]) == 2.0 and usual_size([1.0, 1e9]) == math.inf
    assert usual_size([0.0, 0.0, 0.0]) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=40), st.floats(1e7, 1e300))
def test_one_liar_cannot_exceed_the_largest_honest_size(sizes: list[float], lie: float) -> None:
    assert usual_size([*sizes, lie]) <= max(sizes)


def test_few_samples_and_many_allow_more() -> None:
    counts = {1: 10, 2: 100, 3: 190}
    expected = {1: 10.0 * (1 + 2 / math.sqrt(10)), 2: 1.2, 3: 1.9 * (1 + 2 / math.sqrt(190))}
    assert allowances(counts) == pytest.approx(expected)


def test_the_default_share_is_a_fifth_or_one_and_a_half_equal_shares() -> None:
    assert [largest_share(number) for number in (1, 2, 3, 10, 100)] == [1.0, 0.75, 0.5, 0.2, 0.2]


@given(COUNTS, st.floats(0.01, 1.0))
def test_no_share_is_above_the_cap_and_nothing_is_lowered_without_need(counts: dict[int, int], share: float) -> None:
    weights = capped(counts, share)
    most = max(weights.values())
    assert all(weights[client] == min(number, most) for client, number in counts.items())
    if share * len(counts) <= 1.0:
        assert set(weights.values()) == {min(counts.values())}
    elif most > min(counts.values()):
        assert most / sum(weights.values()) <= share + 1e-9
    if max(counts.values()) <= share * sum(counts.values()):
        assert weights == counts


def deciding_of(values: list[float], *largest: int) -> list[int]:
    """List who decides the mean of one value a client; clients have 10 samples, the last ones these."""
    sizes = dict(enumerate([*[10] * (len(values) - len(largest)), *largest]))
    return deciding(sizes, lambda of: statistics.fmean([values[k] for k in of], list(of.values())))


@pytest.mark.parametrize("lie", [-10.0, -1e9, 1e9, 1e30])
def test_who_alone_decides_is_found(lie: float) -> None:
    honest = [1.0 + 0.1 * client for client in range(9)]
    assert deciding_of([*honest, lie]) == [9] and deciding_of(honest) == []


def test_who_has_half_of_all_samples_may_decide_and_two_cannot_be_told_apart() -> None:
    assert deciding_of([1.0, 1.1, 1e6], 20) == deciding_of([1.0, 1e9]) == []
