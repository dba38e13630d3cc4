import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.report.plots.style import group_size, log_ticks, sum_groups


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 12), st.integers(0, 1))
def test_grouping_keeps_the_total_and_the_bound(rows: int, columns: int, most: int, axis: int) -> None:
    table = np.arange(rows * columns).reshape(rows, columns)
    size = group_size(table.shape[axis], most)
    grouped = sum_groups(table, size, axis)
    assert grouped.shape[axis] <= most
    assert grouped.sum() == table.sum()
    first = np.take(grouped, 0, axis=axis)
    assert (first == np.take(table, range(min(size, table.shape[axis])), axis=axis).sum(axis=axis)).all()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.9, 12, [1, 2, 3, 5, 7, 10]),
        (0.5, 4000, [1, 3, 10, 30, 100, 300, 1000, 3000]),
        (1, 1e6, [10.0**n for n in range(7)]),
    ],
)
def test_log_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    found = [tick for tick in log_ticks(low, high) if tick >= 1]
    assert found == pytest.approx(ticks)


@given(st.floats(1e-6, 1e6), st.floats(1.5, 1e8))
def test_log_ticks_stay_within_the_limits(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert all(low <= tick <= low * ratio for tick in ticks)
    assert ticks == sorted(ticks)
    assert len(ticks) <= 16
