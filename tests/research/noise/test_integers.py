"""Integer noise: its distribution, to the last of 64 bits, and the same numbers for the same key."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from research.noise.integers import DiscreteGaussian

KEY = bytes(range(32))


@pytest.mark.parametrize("deviation", [2.0, 7.3])
def test_the_table_is_the_distribution(deviation: float) -> None:
    table = DiscreteGaussian.of(deviation)
    with localcontext() as context:
        context.prec = 60
        weights = [
            (-Decimal(k * k) / (2 * Decimal(deviation) ** 2)).exp() for k in range(-table.reach, table.reach + 1)
        ]
        total, summed = sum(weights), Decimal(0)
        for found, weight in zip(table.below, weights, strict=False):
            summed += weight
            assert abs(int(found) - int(summed / total * 2**64)) <= 1
    assert len(table.below) == 2 * table.reach


def test_drawn_numbers_have_the_tables_shares() -> None:
    table, number = DiscreteGaussian.of(2.0), 200_000
    drawn = table.draw(number, KEY)
    counts = np.bincount(drawn + table.reach, minlength=2 * table.reach + 1)
    shares = np.diff(np.concatenate([[0.0], table.below / 2.0**64, [1.0]]))
    common = shares * number > 20
    chi = ((counts - shares * number)[common] ** 2 / (shares * number)[common]).sum()
    assert chi < common.sum() + 4 * np.sqrt(2 * common.sum())
    assert abs(drawn.mean()) < 4 * 2.0 / np.sqrt(number)


def test_a_key_gives_its_numbers_and_none_gives_others() -> None:
    table = DiscreteGaussian.of(40.0)
    assert (table.draw(50, KEY) == table.draw(60, KEY)[:50]).all()
    assert (table.draw(50) != table.draw(50)).any()
    assert len(table.draw(0)) == 0


@pytest.mark.parametrize("deviation", [1.9, 1e6, float("nan")])
def test_what_a_table_cannot_hold_is_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match="deviation of 2 to 1e6"):
        DiscreteGaussian.of(deviation)
