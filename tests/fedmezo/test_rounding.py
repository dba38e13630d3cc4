from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.fedmezo.directions import round_stochastically

LARGEST = float(torch.finfo(torch.bfloat16).max)
ALL_BITS = torch.arange(2**16, dtype=torch.int32)
# Half of the dropped bits, one, none; below the smallest normal number; the largest.
VALUES = [1.00390625, 1.0 + 2**-23, 1.0, -3.14159, 1e-40, -1e-45, 0.0, LARGEST, -2.7e38]


def neighbours(value: float) -> tuple[float, float]:
    """The bfloat16 numbers next to a float32 one, the smaller in size first, by its bits as an integer."""
    pattern = int(torch.tensor(value).view(torch.int32)) & 0xFFFFFFFF
    low = pattern & 0xFFFF0000
    high = low if low == pattern else low + 0x10000
    as_float = [word - 2**32 if word >= 2**31 else word for word in (low, high)]
    return tuple(torch.tensor(as_float, dtype=torch.int32).view(torch.float32).tolist())  # type: ignore[return-value]


@given(st.floats(-LARGEST, LARGEST, width=32), st.integers(0, 2**16 - 1))
def test_the_result_is_one_of_the_two_neighbours(value: float, bits: int) -> None:
    made = round_stochastically(torch.tensor([value]), torch.tensor([bits], dtype=torch.int32))
    assert made.dtype == torch.bfloat16 and float(made) in neighbours(value)


@given(st.floats(-LARGEST, LARGEST, width=32))
def test_what_bfloat16_holds_stays_as_it_is(value: float) -> None:
    held = torch.tensor(value).to(torch.bfloat16).float().expand(2**16).contiguous()
    assert torch.equal(round_stochastically(held, ALL_BITS).float(), held)


@pytest.mark.parametrize("value", VALUES)
def test_the_mean_over_all_bits_is_the_number(value: float) -> None:
    values = torch.full((2**16,), value)
    mean = float(round_stochastically(values, ALL_BITS).double().mean())
    assert mean == float(values[0].double())  # sums of multiples of a power of 2 are exact


def test_arguments_stay_as_they_are() -> None:
    values, bits = torch.tensor(VALUES), torch.arange(len(VALUES), dtype=torch.int32)
    before: tuple[Tensor, Tensor] = values.clone(), bits.clone()
    round_stochastically(values, bits)
    assert torch.equal(values, before[0]) and torch.equal(bits, before[1])
