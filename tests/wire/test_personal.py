"""Requests for personal models and what comes back: every record checked on both sides."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import Message

from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire.personal import (
    PERSONALISE,
    PersonalMetrics,
    Prototypes,
    personal_content,
    personal_reply,
    read_personal_reply,
    read_personal_task,
)
from tests.support.compare import same_bits
from tests.support.local_grid import instruction

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


def test_metrics_survive_the_journey() -> None:
    assert read_personal_reply(personal_reply(question(), METRICS)) == METRICS
    assert read_personal_reply(personal_reply(question(), PersonalMetrics())) == PersonalMetrics()


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
