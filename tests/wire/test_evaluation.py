"""Heads down, confusion matrices up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedstats_app.heads import CalibrationSums, ConfusionMatrix, HeadScores, LinearHead, MarginHistograms, margin_bins
from fedstats_app.heads.calibration import NUM_BINS, TEMPERATURES
from fedstats_app.statistics import RandomProjection, StatisticsSpec
from fedstats_app.wire import (
    RejectedReply,
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
LOGITS = torch.randn(20, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
SUMS = CalibrationSums.from_logits(LOGITS, torch.arange(20) % C)
CONFUSION = ConfusionMatrix(torch.tensor([[3, 0, 0, 1], [0, 0, 0, 0], [0, 0, 5, 0], [2, 0, 0, 9]]))
MARGINS = MarginHistograms.from_bins(
    margin_bins(LOGITS), torch.arange(C).repeat_interleave(CONFUSION.matrix.sum(dim=1))
)
SCORES = HeadScores(CONFUSION, SUMS, MARGINS)
# The same with three samples of class 3 that are said to be taken for no class in particular.
UNSAID = HeadScores(
    ConfusionMatrix(
        torch.tensor([[3, 0, 0, 1], [0, 0, 0, 0], [0, 0, 5, 0], [0, 0, 0, 8]]), 4, 2, torch.tensor([0, 0, 0, 3])
    ),
    SUMS,
    MARGINS,
)


def question(head: LinearHead = HEAD, index: int = 0) -> Message:
    return instruction(evaluation_content(REQUEST, {"fedncm": (index, head), "fed3r": (1, HEAD)}), "evaluate.heads")


def test_heads_arrive_bit_for_bit() -> None:
    request, heads = read_evaluation_request(question())

    assert request == REQUEST and set(heads) == {"fedncm", "fed3r"}
    index, head = heads["fed3r"]
    assert index == 1
    assert all(same_bits(getattr(head, name), getattr(HEAD, name)) for name in ("weight", "bias", "present"))


@pytest.mark.parametrize("scores", [SCORES, UNSAID, HeadScores.zeros(C)], ids=["some", "unsaid", "none"])
def test_counts_arrive(scores: HeadScores) -> None:
    reply = evaluation_reply(question(), {"fedncm": scores})

    found = read_evaluation_reply(reply, REQUEST, ("fedncm",))["fedncm"]

    assert torch.equal(found.confusion.matrix, scores.confusion.matrix)
    assert torch.equal(found.confusion.elsewhere, scores.confusion.elsewhere)
    assert found.confusion.num_examples == scores.confusion.num_examples
    assert torch.equal(found.margins.positives, scores.margins.positives)
    assert torch.equal(found.margins.negatives, scores.margins.negatives)
    assert same_bits(found.calibration.losses, scores.calibration.losses)
    assert found.calibration.num_examples == scores.calibration.num_examples
    torch.testing.assert_close(found.calibration.gaps, scores.calibration.gaps, rtol=1e-6, atol=0)
    assert len(reply.content["confusion.fedncm"]["cells"].numpy()) == int((scores.confusion.matrix > 0).sum())
    # Empty bins do not travel: at most one of 16 bytes for each sample and class.
    assert len(reply.content["margins.fedncm"]["bins"].numpy()) <= C * scores.confusion.num_examples


def calibration(key: str, value: np.ndarray) -> Callable[[RecordDict], None]:
    return lambda content: content["calibration.fedncm"].__setitem__(key, Array(value))


def losses(row: int, value: float) -> Callable[[RecordDict], None]:
    changed = SUMS.losses.numpy().copy()
    changed[row, 5] = value
    return calibration("losses", changed)


def without_samples(content: RecordDict) -> None:
    calibration("num-examples", np.array([0]))(content)
    calibration("gaps", np.zeros((len(TEMPERATURES), NUM_BINS), np.float32))(content)


def cells(*rows: tuple[int, int, int], dtype: type = np.int64) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        content["confusion.fedncm"] = ArrayRecord({"cells": Array(np.array(rows, dtype).reshape(-1, 3))})

    return tamper


def elsewhere(*rows: tuple[int, int]) -> Callable[[RecordDict], None]:
    values = Array(np.array(rows, np.int64).reshape(-1, 2))
    return lambda content: content["confusion.fedncm"].__setitem__("elsewhere", values)


def bins(change: Callable[[np.ndarray], object], dtype: type = np.int32) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        values = content["margins.fedncm"]["bins"].numpy().astype(dtype)
        made = change(values)
        content["margins.fedncm"]["bins"] = Array(values if made is None else np.asarray(made, dtype))

    return tamper


def put(row: int, column: int, value: int) -> Callable[[RecordDict], None]:
    return bins(lambda values: values.__setitem__((row, column), value))


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
        (lambda content: content.update({"confusion.other": ArrayRecord()}), r"unexpected \['confusion.other'\]"),
        (elsewhere((C, 1)), r"elsewhere: classes must differ and lie in \[0, 4\)"),
        (elsewhere((0, 1), (0, 2)), "elsewhere: classes must differ"),
        (elsewhere((0, 0)), r"elsewhere: counts must lie in \[1, 10000000\]"),
        (elsewhere(), "elsewhere: must have shape"),
        (elsewhere((0, 1)), "bins: must hold every sample of the confusion matrix"),
        (losses(0, -1e-9), "losses: must lie within 1e.30 and be at least 0 but for slopes"),
        (losses(2, -1.0), "losses: must lie within"),
        (losses(1, 1e31), "losses: must lie within"),
        (losses(0, np.nan), "losses: must be finite"),
        (calibration("losses", np.zeros((4, 3))), "losses: must have shape"),
        (
            calibration("gaps", np.full((len(TEMPERATURES), NUM_BINS), 1.5, np.float32)),
            "gaps: must add up to at most 20",
        ),
        (calibration("gaps", SUMS.gaps.numpy()), "gaps: must be <f4"),
        (calibration("num-examples", np.array([21])), r"num-examples: must lie in \[0, 20\]"),
        (calibration("num-examples", np.array([-1])), r"num-examples: must lie in \[0, 20\]"),
        (without_samples, "must be zero without samples"),
        (put(0, 0, C), r"bins: classes must lie in \[0, 4\) and bins in \[0, 1281\)"),
        (put(0, 0, -1), "bins: classes must lie in"),
        (put(0, 1, 1281), "bins: classes must lie in"),
        (put(0, 1, -1), "bins: classes must lie in"),
        (put(0, 2, -1), "bins: counts must be at least 0, got -1"),
        (put(0, 3, 1000), "bins: must hold every sample of the confusion matrix once for each class"),
        (put(0, 2, 1000), "bins: must hold every sample"),
        (bins(lambda values: values[1:]), "bins: must hold every sample"),
        (bins(lambda values: np.concatenate([values, values[:1]])), "bins: must differ in class or bin"),
        (bins(lambda values: values[:, :3]), "bins: must have shape"),
        (bins(lambda values: np.zeros((C * 1281 + 1, 4))), "bins: must have shape"),
        (bins(lambda values: values, np.int64), "bins: must be <i4"),
        (lambda content: content.pop("margins.fedncm"), r"missing \['margins.fedncm'\]"),
    ],
)
def test_what_cannot_be_an_evaluation_is_refused(tamper: Callable[[RecordDict], None], reason: str) -> None:
    reply = evaluation_reply(question(), {"fedncm": SCORES})
    tamper(reply.content)

    with pytest.raises(RejectedReply, match=reason):
        read_evaluation_reply(reply, REQUEST, ("fedncm",))


def pooled_reply(pooled: ConfusionMatrix = ConfusionMatrix(CONFUSION.matrix, 7, 5)) -> Message:  # noqa: B008  # immutable
    return evaluation_reply(question(), {"fedncm": replace(SCORES, confusion=pooled), "fed3r": SCORES})


def test_samples_without_their_class_arrive_as_two_numbers() -> None:
    reply = pooled_reply()

    found = read_evaluation_reply(reply, REQUEST, ("fedncm", "fed3r"))["fedncm"].confusion

    assert (found.pooled_examples, found.pooled_correct, found.num_examples) == (7, 5, 27)
    assert torch.equal(found.matrix, CONFUSION.matrix)
    assert "pooled" not in reply.content["confusion.fed3r"]  # nothing new where there is nothing to pool


@pytest.mark.parametrize("values", [[5, 7], [-1, -1], [7, -1], [10_000_001, 0]])
def test_pooled_counts_that_cannot_be_are_refused(values: list[int]) -> None:
    reply = pooled_reply()
    reply.content["confusion.fedncm"]["pooled"] = Array(np.array(values))

    with pytest.raises(RejectedReply, match=r"pooled: must be 0 <= correct <= examples"):
        read_evaluation_reply(reply, REQUEST, ("fedncm", "fed3r"))
