from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics import RandomFourierFeatures
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import RejectedReply
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.training import (
    EvaluationCounts,
    TrainingMetrics,
    check_training_reply,
    losses_reply,
    model_evaluation_reply,
    nothing_to_train_reply,
    read_losses_reply,
    read_model_evaluation_reply,
    read_training_task,
    training_reply,
)
from tests.support.local_grid import instruction

STATE = {"head.bias": torch.tensor([0.5, -0.5]), "head.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in STATE.items()}


def reply(**metrics: object) -> Message:
    good = training_reply(instruction(RecordDict(), "train"), STATE, num_examples=7, loss=0.25, seconds=1.5)
    for name, value in metrics.items():
        good.content["metrics"][name.replace("_", "-")] = value
    return good


def test_request_survives_the_journey() -> None:
    request = TrainingRequest(
        2,
        "full",
        LocalOptions(epochs=3, batch_size=5, learning_rate=0.2, momentum=0.5, weight_decay=1e-4, flip=True),
        temperature=0.1,
        tune_bias=False,
        batch_norm="averaged",
        feature_map=RandomFourierFeatures(8, 2.0, 1),
        seed=4,
        holdout=0.25,
        backbone_fingerprint="abc",
        class_names=("ant", "bee"),
    )
    config = ConfigRecord({**to_values(request), "server-round": 9})
    fixed = {"head.bias": torch.zeros(2)}
    task = read_training_task(
        instruction(RecordDict({"arrays": to_record(STATE), "fixed": to_record(fixed), "config": config}), "train")
    )
    assert task.request.feature_map.to_dict() == request.feature_map.to_dict()
    assert task.request == TrainingRequest(**{**request.__dict__, "feature_map": task.request.feature_map})
    assert task.server_round == 9
    assert all(torch.equal(task.trained[name], STATE[name]) for name in STATE)
    assert torch.equal(task.fixed["head.bias"], torch.zeros(2))


def test_a_good_reply_is_taken() -> None:
    assert check_training_reply(reply(), SHAPES) == TrainingMetrics(7, 0.25, 1.5)
    assert check_training_reply(reply(), SHAPES, 7).num_examples == 7


def test_a_client_without_samples_is_no_failure() -> None:
    empty = nothing_to_train_reply(instruction(RecordDict(), "train"))
    assert check_training_reply(empty, SHAPES).num_examples == 0
    with pytest.raises(RejectedReply, match="missing"):
        check_training_reply(empty, SHAPES, 7)


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 5))
def test_no_array_that_is_not_finite_passes(value: float, position: int) -> None:
    poisoned = reply()
    weight = STATE["head.weight"].clone()
    weight.view(-1)[position] = value
    poisoned.content["arrays"] = to_record({**STATE, "head.weight": weight})
    with pytest.raises(RejectedReply, match=r"head.weight: must be finite"):
        check_training_reply(poisoned, SHAPES)


@pytest.mark.parametrize(
    "arrays",
    [
        {"head.weight": STATE["head.weight"]},
        {**STATE, "backbone.weight": torch.zeros(1)},
        {**STATE, "head.bias": torch.zeros(3)},
        {**STATE, "head.bias": torch.zeros(2, dtype=torch.float64)},
    ],
)
def test_other_arrays_than_those_that_went_down_are_rejected(arrays: dict[str, torch.Tensor]) -> None:
    bad = reply()
    bad.content["arrays"] = to_record(arrays)
    with pytest.raises(RejectedReply):
        check_training_reply(bad, SHAPES)


def test_evaluation_counts_add_up_and_travel() -> None:
    counts = EvaluationCounts(4, 3, 1.5) + EvaluationCounts(1, 0, 2.0)
    message = model_evaluation_reply(instruction(RecordDict(), "evaluate.model"), counts)
    assert read_model_evaluation_reply(message) == EvaluationCounts(5, 3, 3.5)
    message.content["metrics"]["num-correct"] = 6
    with pytest.raises(RejectedReply, match="num-correct: must be a whole number from 0 to 5, got 6"):
        read_model_evaluation_reply(message)


def losses(**changes: object) -> Message:
    made = losses_reply(instruction(RecordDict(), "train.losses"), [0.5 + n for n in range(33)], 7)
    if "by_temperature" in changes:
        made.content["losses"] = to_record({"by-temperature": torch.tensor(changes["by_temperature"]).double()})
    if "num_examples" in changes:
        made.content["metrics"]["num-examples"] = changes["num_examples"]
    return made


def test_losses_survive_the_journey() -> None:
    assert read_losses_reply(losses(), 7).losses == tuple(0.5 + n for n in range(33))
    nothing = nothing_to_train_reply(instruction(RecordDict(), "train.losses"))
    assert read_losses_reply(nothing, 0).losses == ()


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"num_examples": 6}, 7),
        ({}, 8),
        ({}, 0),
        ({"by_temperature": [0.5] * 32}, 7),
        ({"by_temperature": [0.5] * 34}, 7),
        ({"by_temperature": [0.5] * 32 + [-1e-9]}, 7),
        ({"by_temperature": [0.5] * 32 + [math.nan]}, 7),
        ({"by_temperature": [0.5] * 32 + [math.inf]}, 7),
        ({"by_temperature": [0.5] * 32 + [1.1e30]}, 7),
    ],
)
def test_losses_that_cannot_be_are_rejected(changes: dict[str, object], known: int) -> None:
    with pytest.raises(RejectedReply):
        read_losses_reply(losses(**changes), known)
    with pytest.raises(RejectedReply):
        read_losses_reply(nothing_to_train_reply(instruction(RecordDict(), "train.losses")), 7)
