from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.training.samples import TensorSamples, batch_order

words = st.integers(0, 2**63 - 1)


@given(st.integers(0, 300), st.integers(1, 350), st.lists(words, min_size=1, max_size=4), st.integers(0, 50))
def test_an_epoch_has_every_sample_once_in_full_batches_but_the_last(
    n: int, batch_size: int, key: list[int], epoch: int
) -> None:
    batches = batch_order(n, batch_size, key, epoch)
    assert sorted(position for batch in batches for position in batch.tolist()) == list(range(n))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert all(0 < len(batch) <= batch_size and batch.dtype == torch.int64 for batch in batches)


@given(st.integers(1, 100), st.lists(words, min_size=1, max_size=4), st.integers(0, 50))
def test_the_order_does_not_depend_on_the_batch_size(n: int, key: list[int], epoch: int) -> None:
    whole = batch_order(n, n, key, epoch)[0]
    assert torch.equal(torch.cat(batch_order(n, 7, key, epoch)), whole)


def test_key_and_epoch_decide_the_order() -> None:
    def order(*key: int, epoch: int = 0) -> list[int]:
        return torch.cat(batch_order(50, 8, key, epoch)).tolist()

    assert order(0, 3, 1) == order(0, 3, 1)
    others = [order(0, 3, 2), order(0, 4, 1), order(1, 3, 1), order(0, 3, 1, epoch=1)]
    assert all(other != order(0, 3, 1) for other in others)
    assert len({tuple(other) for other in others}) == len(others)


def test_samples_are_read_by_position_and_copied() -> None:
    inputs = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    samples = TensorSamples(inputs, torch.tensor([0, 1, 0, 1]))
    read = samples.inputs(torch.tensor([2, 0]))
    assert read.tolist() == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]
    read.zero_()
    assert inputs.sum() == 66


@pytest.mark.parametrize("labels", [torch.zeros(3).long(), torch.zeros(2)])
def test_labels_that_do_not_fit_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"labels must be \(2\) int64, got"):
        TensorSamples(torch.zeros(2, 3), labels)
