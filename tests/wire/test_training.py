"""Replies of clients that trained: only what went down comes back, and counts add up."""

from __future__ import annotations

import pytest
import torch

from fedstats_app.wire import RejectedReply
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.training import EvaluationCounts
from tests.wire.messages import ARRAYS, KINDS


@pytest.mark.parametrize(
    "arrays",
    [
        {"head.weight": ARRAYS["head.weight"]},
        {**ARRAYS, "backbone.weight": torch.zeros(1)},
        {**ARRAYS, "head.bias": torch.zeros(3)},
        {**ARRAYS, "head.bias": ARRAYS["head.bias"].double()},
    ],
)
def test_other_arrays_than_those_that_went_down_are_rejected(arrays: dict[str, torch.Tensor]) -> None:
    content = KINDS["train reply"].good()
    content["arrays"] = to_record(arrays)
    with pytest.raises(RejectedReply, match=r"head\.bias: must|missing|unexpected"):
        KINDS["train reply"].read(content)


def test_evaluation_counts_add_up() -> None:
    assert EvaluationCounts(4, 3, 1.5) + EvaluationCounts(1, 0, 2.0) == EvaluationCounts(5, 3, 3.5)
