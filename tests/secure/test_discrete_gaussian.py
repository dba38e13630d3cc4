"""Integer noise: its distribution, to the last of 64 bits, and the same numbers for the same key."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from fedstats_app.secure.discrete_gaussian import DiscreteGaussian

KEY = bytes(range(32))


@pytest.mark.parametrize("deviation", [2.0, 7.3])
def test_the_table_is_the_distribution(deviation: float) -> None:
    table = DiscreteGaussian.of(deviation)
    with localcontext() as context:
        context.prec = 60
        twice = 2 * Decimal(deviation) ** 2
        weights = [(-Decimal(k * k) / twice).exp() for k in range(-table.reach, table.reach + 1)]
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
    assert chi < common.sum() + 4 * np.sqrt(2 * common.sum()) and abs(drawn.mean()) < 4 * 2.0 / np.sqrt(number)


def test_a_key_gives_its_numbers_and_none_gives_others() -> None:
    table = DiscreteGaussian.of(40.0)
    assert (table.draw(50, KEY) == table.draw(60, KEY)[:50]).all() and (table.draw(50) != table.draw(50)).any()
    assert len(table.draw(0)) == 0


@pytest.mark.parametrize("deviation", [8193.0, 5e7])
def test_wide_noise_has_no_gaps(deviation: float) -> None:
    """Of two and of three tables: its size, its tails, and all remainders alike often."""
    number = 200_000
    drawn = DiscreteGaussian.of(deviation).draw(number, KEY)
    units = drawn / deviation
    assert units.std() == pytest.approx(1.0, rel=0.01) and abs(units.mean()) < 0.01
    assert (units**4).mean() == pytest.approx(3.0, rel=0.03)
    counts = np.bincount(drawn % 1024, minlength=1024)
    assert ((counts - number / 1024) ** 2 / (number / 1024)).sum() < 1023 + 4 * np.sqrt(2 * 1023)


@pytest.mark.parametrize("deviation", [1.9, 1e13, float("nan")])
def test_what_tables_cannot_hold_is_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match="deviation of 2 to 1e12"):
        DiscreteGaussian.of(deviation)
