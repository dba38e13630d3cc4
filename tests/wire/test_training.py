"""Replies of clients that trained: only what went down comes back, and counts add up."""

from __future__ import annotations

import pytest
import torch

from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import RejectedReply
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.reading import to_values
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


def test_what_nobody_asked_for_is_not_in_a_request() -> None:
    """A key more would change the bytes of every training."""
    assert to_values(TrainingRequest(3)) == {
        "num-classes": 3,
        "seed": 0,
        "holdout": 0.0,
        "backbone-fingerprint": "",
        "class-names": [],
        "tune": "probe",
        "local-epochs": 1,
        "train-batch-size": 16,
        "momentum": 0.0,
        "weight-decay": 0.0,
        "flip": False,
        "learning-rate": 0.01,
        "temperature": 1.0,
        "tune-bias": True,
        "batch-norm": "frozen",
        "feature-map": '{"kind": "identity"}',
    }
