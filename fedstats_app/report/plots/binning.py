"""Fewer cells than classes or clients where a picture has not the room for all; round numbers for logarithmic axes."""

import numpy as np
from numpy.typing import NDArray

_MOST_DECADES = 8


def group_size(number: int, most: int) -> int:
    """How many neighbours share a cell so that `number` of them need at most `most` cells."""
    return -(-number // most)


def sum_groups(table: NDArray[np.int64], size: int, axis: int) -> NDArray[np.int64]:
    """Add up every `size` neighbours along an axis; the last group may be smaller."""
    summed: NDArray[np.int64] = np.add.reduceat(table, np.arange(0, table.shape[axis], size), axis=axis)
    return summed


def log_ticks(low: float, high: float) -> list[float]:
    """Give round numbers from low to high: decades, fewer where they are many, steps between where they are few."""
    decades = np.log10(high / low)
    steps = (1,) if decades > 5 else (1, 3) if decades > 3 else (1, 2, 5) if decades > 1.2 else (1, 2, 3, 5, 7)
    every = group_size(int(decades) + 1, _MOST_DECADES)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1, every)
    return [tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high]
