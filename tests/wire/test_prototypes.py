"""FedProto's rounds on the wire."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.personal import PersonalMetrics, Prototypes
from fedstats_app.wire.prototypes import (
    PROTOTYPES,
    LocalPrototypes,
    prototype_content,
    prototype_reply,
    read_prototype_reply,
    read_prototype_task,
)
from tests.support.compare import same_bits
from tests.support.local_grid import instruction

C, D = 4, 3
EVERY = torch.ones(C, dtype=torch.bool)
SHARED = Prototypes(torch.ones(C, D), EVERY, "mean-square", 1.0)
LOCAL = LocalPrototypes(
    torch.tensor([0, 3]),
    torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
    0.75,
    True,
    PersonalMetrics(10, 0, 0, 0, 40, 2.0),
)


def content(server_round: int = 2, last: bool = False) -> RecordDict:
    return prototype_content(TrainingRequest(C, "full"), SHARED, EVERY, server_round=server_round, last=last)


def reply(local: LocalPrototypes = LOCAL) -> Message:
    return prototype_reply(instruction(content(), PROTOTYPES), local)


@pytest.mark.parametrize("last", [False, True])
def test_a_round_survives_the_journey(last: bool) -> None:
    task, is_last = read_prototype_task(instruction(content(5, last), PROTOTYPES))
    assert is_last is last and task.training.server_round == 5
    assert task.training.trained == {}  # a client has its own model
    assert task.prototypes is not None and same_bits(task.prototypes.means, SHARED.means)


def test_class_means_survive_the_journey() -> None:
    read = read_prototype_reply(reply(), C, D)
    assert same_bits(read.class_ids, LOCAL.class_ids) and same_bits(read.means, LOCAL.means)
    assert (read.loss, read.restarted, read.metrics) == (0.75, True, LOCAL.metrics)
    nothing = LocalPrototypes(torch.empty(0, dtype=torch.int64), torch.empty(0, D), 0.0, False, PersonalMetrics())
    assert len(read_prototype_reply(reply(nothing), C, D).class_ids) == 0
