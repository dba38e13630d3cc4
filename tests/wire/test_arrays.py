"""Tensors travel as .npy bytes that numpy writes and that are read without evaluating anything."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.wire.arrays import read_array, to_array
from fedstats_app.wire.reading import Malformed
from tests.support.compare import same_bits


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64]),
    seed=st.integers(0, 99),
)
def test_round_trip(shape: list[int], dtype: torch.dtype, seed: int) -> None:
    tensor = (1e6 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)

    assert to_array(tensor) == Array(tensor.numpy())  # as Flower makes it
    assert same_bits(read_array(ArrayRecord({"a": to_array(tensor)}), "a", dtype, tuple(shape)), tensor)


def test_what_comes_out_can_be_written_to_and_is_nobody_elses() -> None:
    record = ArrayRecord({"a": to_array(torch.zeros(3))})

    read_array(record, "a", torch.float32, (3,)).add_(1)

    assert record["a"].numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("stride", [slice(None, None, 2), slice(None, None, None)])
def test_any_layout_leaves_in_c_order(stride: slice) -> None:
    tensor = torch.arange(24.0).reshape(4, 6).T[stride]

    assert torch.equal(read_array(ArrayRecord({"a": to_array(tensor)}), "a", torch.float32, tensor.shape), tensor)


@pytest.mark.parametrize(("rows", "allowed"), [(0, True), (5, True), (6, False)])
def test_rows_are_bounded(rows: int, allowed: bool) -> None:
    record = ArrayRecord({"a": Array(np.zeros((rows, 2)))})

    if allowed:
        assert len(read_array(record, "a", torch.float64, (range(6), 2))) == rows
    else:
        with pytest.raises(Malformed, match=r"a: must have shape \('0..5', 2\), got \(6, 2\)"):
            read_array(record, "a", torch.float64, (range(6), 2))
