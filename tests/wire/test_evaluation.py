"""Heads down, confusion matrices up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedstats_app.heads import ConfusionMatrix, LinearHead
from fedstats_app.statistics import RandomProjection, StatisticsSpec
from fedstats_app.wire import (
    RejectedReply,
    RejectedRequest,
    StatisticsRequest,
    evaluation_content,
    evaluation_reply,
    read_evaluation_reply,
    read_evaluation_request,
)
from tests.support.compare import same_bits
from tests.support.local_grid import instruction

C, D = 4, 3
REQUEST = StatisticsRequest(C, (StatisticsSpec(), StatisticsSpec(feature_map=RandomProjection(7, 0))), holdout=0.25)
HEAD = LinearHead(
    torch.randn(C, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    torch.arange(C, dtype=torch.float64),
    torch.tensor([True, False, True, True]),
)
CONFUSION = ConfusionMatrix(torch.tensor([[3, 0, 0, 1], [0, 0, 0, 0], [0, 0, 5, 0], [2, 0, 0, 9]]))


def question(head: LinearHead = HEAD, index: int = 0) -> Message:
    return instruction(evaluation_content(REQUEST, {"fedncm": (index, head), "fed3r": (1, HEAD)}), "evaluate.heads")


def test_heads_arrive_bit_for_bit() -> None:
    request, heads = read_evaluation_request(question())

    assert request == REQUEST and set(heads) == {"fedncm", "fed3r"}
    index, head = heads["fed3r"]
    assert index == 1
    assert all(same_bits(getattr(head, name), getattr(HEAD, name)) for name in ("weight", "bias", "present"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weight", np.full((C, D), np.nan)),
        ("weight", np.zeros(C)),
        ("weight", np.zeros((C + 1, D))),
        ("weight", np.array(["a"])),
        ("bias", np.zeros(C + 1)),
        ("present", np.ones(C + 1, np.uint8)),
        ("specification", np.array(2)),
        ("specification", np.array(-1)),
        ("specification", np.array([0, 1])),
        ("bias", None),
    ],
)
def test_a_hostile_head_is_refused_on_the_client(key: str, value: np.ndarray | None) -> None:
    msg = question()
    if value is None:
        del msg.content["head.fedncm"][key]
    else:
        msg.content["head.fedncm"][key] = Array(value)

    with pytest.raises(RejectedRequest, match=r"not a head: head\.fedncm"):
        read_evaluation_request(msg)


def test_a_head_of_other_classes_is_refused_on_the_client() -> None:
    with pytest.raises(RejectedRequest, match="must have 4 classes, got 6"):
        read_evaluation_request(question(LinearHead(torch.zeros(6, D), torch.zeros(6))))


@pytest.mark.parametrize("confusion", [CONFUSION, ConfusionMatrix.zeros(C)], ids=["some", "none"])
def test_counts_arrive(confusion: ConfusionMatrix) -> None:
    reply = evaluation_reply(question(), {"fedncm": confusion})

    received = read_evaluation_reply(reply, REQUEST, ("fedncm",))

    assert torch.equal(received["fedncm"].matrix, confusion.matrix)
    assert len(reply.content["confusion.fedncm"]["cells"].numpy()) == int((confusion.matrix > 0).sum())


def cells(*rows: tuple[int, int, int], dtype: type = np.int64) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        content["confusion.fedncm"] = ArrayRecord({"cells": Array(np.array(rows, dtype).reshape(-1, 3))})

    return tamper


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (cells((0, C, 1)), r"classes must lie in \[0, 4\)"),
        (cells((-1, 0, 1)), r"classes must lie in \[0, 4\)"),
        (cells((0, 0, 0)), r"counts must lie in \[1, 10000000\], got 0"),
        (cells((0, 0, -5)), "counts must lie in"),
        (cells((0, 0, 2**62)), "counts must lie in"),
        (cells((0, 0, 1), (0, 0, 1)), "one cell twice"),
        (cells((0, 0, 1), dtype=np.float64), "cells: must be <i8"),
        (cells(*[(0, 0, 1)] * (C * C + 1)), "cells: must have shape"),
        (lambda content: content.update({"confusion.fedncm": MetricRecord()}), "must be an ArrayRecord"),
        (lambda content: content.update({"confusion.other": ArrayRecord()}), r"unexpected \['confusion.other'\]"),
        (lambda content: content.__delitem__("confusion.fedncm"), r"missing \['confusion.fedncm'\]"),
        (lambda content: content.__delitem__("metrics"), r"missing \['metrics'\]"),
        (lambda content: content["confusion.fedncm"].__delitem__("cells"), r"missing \['cells'\]"),
    ],
)
def test_what_is_no_confusion_matrix_is_refused(tamper: Callable[[RecordDict], None], reason: str) -> None:
    reply = evaluation_reply(question(), {"fedncm": CONFUSION})
    tamper(reply.content)

    with pytest.raises(RejectedReply, match=reason):
        read_evaluation_reply(reply, REQUEST, ("fedncm",))


def test_an_error_is_refused_with_its_reason() -> None:
    with pytest.raises(RejectedReply, match="no held-out samples"):
        read_evaluation_reply(Message(Error(code=100, reason="no held-out samples"), reply_to=question()), REQUEST, ())
