"""FedProto's rounds on the wire."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, Message, RecordDict

from fedstats_app.wire import RejectedReply, RejectedRequest
from fedstats_app.wire.personal import PersonalMetrics, Prototypes
from fedstats_app.wire.prototypes import (
    PROTOTYPES,
    LocalPrototypes,
    prototype_content,
    prototype_reply,
    read_prototype_reply,
    read_prototype_task,
)
from fedstats_app.wire.training import TrainingRequest
from tests.support.compare import same_bits
from tests.support.local_grid import instruction
from tests.wire.messages import put

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


def test_rounds_count_from_1() -> None:
    with pytest.raises(RejectedRequest, match="server-round: must count from 1, got 0"):
        read_prototype_task(instruction(content(server_round=0), PROTOTYPES))


def test_class_means_survive_the_journey() -> None:
    read = read_prototype_reply(reply(), C, D)
    assert same_bits(read.class_ids, LOCAL.class_ids) and same_bits(read.means, LOCAL.means)
    assert (read.loss, read.restarted, read.metrics) == (0.75, True, LOCAL.metrics)
    nothing = LocalPrototypes(torch.empty(0, dtype=torch.int64), torch.empty(0, D), 0.0, False, PersonalMetrics())
    assert len(read_prototype_reply(reply(nothing), C, D).class_ids) == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("prototypes", "class-ids", Array(np.array([0, 4]))), "class-ids: must lie in"),
        (put("prototypes", "class-ids", Array(np.array([3, 0]))), "class-ids: must ascend"),
        (put("prototypes", "class-ids", Array(np.array([3, 3]))), "class-ids: at most 1 rows per class"),
        (put("prototypes", "class-ids", Array(np.arange(9))), "class-ids: must have shape"),
        (put("prototypes", "class-ids", Array(np.array([0]))), "means: must have shape"),
        (put("prototypes", "means", Array(np.zeros((2, D + 1), np.float32))), "means: must have shape"),
        (put("prototypes", "means", Array(np.zeros((2, D)))), "means: must be <f4"),
        (put("prototypes", "means", Array(np.full((2, D), np.inf, np.float32))), "means: must be finite"),
        (put("prototypes", "means", Array(np.full((2, D), 1e11, np.float32))), "means: must lie within"),
        (put("metrics", "restarted", 2), "restarted: must be a whole number from 0 to 1"),
        (put("metrics", "num-test", -1), "num-test"),
    ],
)
def test_what_cannot_be_class_means_is_refused(change: Callable[[RecordDict], object], reason: str) -> None:
    forged = reply()
    change(forged.content)
    with pytest.raises(RejectedReply, match=reason):
        read_prototype_reply(forged, C, D)
