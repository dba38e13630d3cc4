"""Requests for personal models and what comes back: every record checked on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, Message, RecordDict

from fedstats_app.training.options import LocalOptions
from fedstats_app.wire import RejectedReply, RejectedRequest
from fedstats_app.wire.personal import (
    PERSONALISE,
    PersonalMetrics,
    Prototypes,
    personal_content,
    personal_reply,
    read_personal_reply,
    read_personal_task,
)
from fedstats_app.wire.training import TrainingRequest
from tests.support.compare import same_bits
from tests.support.local_grid import instruction
from tests.wire.messages import put

C, D = 4, 3
REQUEST = TrainingRequest(C, "full", LocalOptions(epochs=20, momentum=0.5), seed=7, holdout=0.2)
HEAD = {"head.weight": torch.arange(12, dtype=torch.float32).reshape(C, D), "head.bias": torch.ones(C)}
PREDICTABLE = torch.tensor([True, False, True, True])
PROTOTYPES = Prototypes(torch.randn(C, D, generator=torch.Generator().manual_seed(0)), PREDICTABLE, "mean-square", 0.5)
METRICS = PersonalMetrics(100, 25, 10, 20, 6000, 1.5)


def question(prototypes: Prototypes | None = PROTOTYPES) -> Message:
    return instruction(personal_content(REQUEST, HEAD, prototypes, PREDICTABLE), PERSONALISE)


def test_a_request_survives_the_journey() -> None:
    task = read_personal_task(question())
    assert task.training.request == REQUEST and task.training.server_round == 1
    assert all(same_bits(task.training.trained[name], HEAD[name]) for name in HEAD)
    assert task.predictable.tolist() == PREDICTABLE.tolist()
    assert task.prototypes is not None
    assert same_bits(task.prototypes.means, PROTOTYPES.means) and same_bits(task.prototypes.present, PREDICTABLE)
    assert (task.prototypes.form, task.prototypes.weight) == ("mean-square", 0.5)


def test_without_a_start_and_prototypes_nothing_travels_but_settings() -> None:
    content = personal_content(REQUEST, {}, None, torch.ones(C, dtype=torch.bool))
    assert not any(record for record in content.array_records.values())
    task = read_personal_task(instruction(content, PERSONALISE))
    assert task.prototypes is None and task.training.trained == {} and bool(task.predictable.all())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("personal", "absent-classes", [C]), "absent-classes: must be"),
        (put("personal", "absent-classes", [-1]), "absent-classes: must be"),
        (put("alignment", "form", "cosine"), "form must be one of"),
        (put("alignment", "weight", -1.0), "weight: must be a finite float of at least 0"),
        (put("prototypes", "means", Array(np.full((C, D), np.nan, np.float32))), "means: must be finite"),
        (put("prototypes", "means", Array(np.zeros((C + 1, D), np.float32))), "means: must have shape"),
        (put("prototypes", "means", Array(np.zeros(C, np.float32))), "means: must have shape"),
        (put("prototypes", "means", Array(np.zeros((C, D)))), "means: must be <f4"),
        (put("prototypes", "present", Array(np.ones(C, np.int64))), "present: must be"),
    ],
)
def test_what_is_no_request_is_refused(change: Callable[[RecordDict], object], reason: str) -> None:
    content = personal_content(REQUEST, HEAD, PROTOTYPES, PREDICTABLE)
    change(content)
    with pytest.raises(RejectedRequest, match=reason):
        read_personal_task(instruction(content, PERSONALISE))


def test_metrics_survive_the_journey() -> None:
    assert read_personal_reply(personal_reply(question(), METRICS)) == METRICS
    assert read_personal_reply(personal_reply(question(), PersonalMetrics())) == PersonalMetrics()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("correct-after", 26, "correct-after: must be a whole number from 0 to 25, got 26"),
        ("correct-before", 26, "correct-before: must be a whole number from 0 to 25"),
        ("correct-after", -1, "correct-after"),
        ("num-test", 10**8, "num-test"),
        ("num-examples", -1, "num-examples"),
        ("forward-passes", 2**60, "forward-passes"),
        ("seconds", -0.5, "seconds"),
    ],
)
def test_metrics_that_cannot_be_are_refused(key: str, value: object, reason: str) -> None:
    reply = personal_reply(question(), METRICS)
    reply.content["metrics"][key] = value
    with pytest.raises(RejectedReply, match=reason):
        read_personal_reply(reply)


@pytest.mark.parametrize(
    ("means", "present", "form", "weight"),
    [
        (torch.zeros(C), torch.ones(C, dtype=torch.bool), "mean-square", 1.0),
        (torch.zeros(C, D), torch.ones(C + 1, dtype=torch.bool), "mean-square", 1.0),
        (torch.zeros(C, D), torch.ones(C), "mean-square", 1.0),
        (torch.zeros(C, D), torch.ones(C, dtype=torch.bool), "sum", 1.0),
        (torch.zeros(C, D), torch.ones(C, dtype=torch.bool), "mean-square", math.inf),
    ],
)
def test_prototypes_check_themselves(means: torch.Tensor, present: torch.Tensor, form: str, weight: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Prototypes(means, present, form, weight)
