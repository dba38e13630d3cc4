"""Federated evaluation: heads go down; confusion matrices, histograms and a temperature each come up.

Messages of type ``evaluate.heads``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.heads import ClientScores, ConfusionMatrix, LinearHead
from fedstats_app.heads.calibration import TEMPERATURES
from fedstats_app.heads.leave_one_out import ClientLeftOut, LeaveOneOut
from fedstats_app.heads.linear_head import SolveReport
from fedstats_app.heads.scores import NUM_MARGIN_BINS
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.methods import MOST_METHODS
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, read_array, to_array
from fedstats_app.wire.keeping import content_digest
from fedstats_app.wire.reading import MAX_COUNT, Malformed, check_keys, reads_replies, reads_requests, record_of, whole
from fedstats_app.wire.statistics import StatisticsRequest, read_statistics_request
from fedstats_app.wire.target_evaluation import read_target_left_out, target_left_out_record

EVALUATE_HEADS = "evaluate.heads"
MAX_HEADS = MOST_METHODS
# By what training samples are judged in place of those held out.
LeftOut: TypeAlias = LeaveOneOut | TargetLeaveOneOut | ClientLeftOut


def evaluation_content(
    request: StatisticsRequest,
    heads: Mapping[str, LinearHead],
    left_out: LeftOut | None = None,
) -> RecordDict:
    """Write a request to evaluate heads; the request for statistics tells which samples are held out."""
    return RecordDict({**request.to_content(), **heads_content(heads, left_out, request.spec.targets)})


def heads_content(heads: Mapping[str, LinearHead], left_out: LeftOut | None, targets: str) -> RecordDict:
    """Write heads, of samples with some kind of targets.

    Or, with ``left_out``, the only head that is to be judged on the samples in the statistics, each left out of it:
    d (d + 1) / 2 numbers, of which float32 is enough, go down. A head without the client needs none: the record is
    empty.
    """
    content = RecordDict()
    if isinstance(left_out, ClientLeftOut):
        content["leave-one-out"] = ArrayRecord()
    elif isinstance(left_out, TargetLeaveOneOut):
        content["leave-one-out"] = target_left_out_record(left_out)
    elif left_out is not None:
        triangle = pack_upper(left_out.inverse).to(torch.float32)
        content["leave-one-out"] = ArrayRecord({"inverse": to_array(triangle), "lengths": to_array(left_out.lengths)})
    for name, head in heads.items():
        content[f"head.{name}"] = ArrayRecord(
            {
                "weight": to_array(head.weight.to(torch.float64)),
                "bias": to_array(head.bias.to(torch.float64)),
                "present": to_array(head.present.to(torch.uint8)),
            }
        )
        if targets == "numbers":
            content.array_records[f"head.{name}"]["deviations"] = to_array(
                torch.tensor(head.report.deviations, dtype=torch.float64)
            )
    return content


@reads_requests("to evaluate heads")
def read_evaluation_request(msg: Message) -> tuple[StatisticsRequest, dict[str, LinearHead], LeftOut | None]:
    """Return the request for statistics, the heads by method, and what leave-one-out scores take."""
    request = read_statistics_request(msg)
    return request, *read_heads(msg.content, request.num_classes, request.spec.targets)


def heads_digest(content: RecordDict) -> str:
    """Return the SHA-256, 64 hex digits, of the records of a message that :func:`heads_content` wrote."""
    names = sorted(name for name in content if name.startswith("head.") or name == "leave-one-out")
    return content_digest({name: content[name] for name in names})


def read_heads(content: RecordDict, classes: int, targets: str) -> tuple[dict[str, LinearHead], LeftOut | None]:
    """Read heads that :func:`heads_content` wrote, of this number of classes; others are :class:`Malformed`."""
    names = [name for name in content if name.startswith("head.")]
    if len(names) > MAX_HEADS:
        raise Malformed(f"a message brings at most {MAX_HEADS} heads, got {len(names)}")
    heads = {}
    for name in names:
        record = record_of(content, name, ArrayRecord)
        weight = read_array(record, "weight", torch.float64, (classes, range(1, MAX_FEATURE_DIM + 1)))
        # The bias of an absent class may be -inf; a head checks that those of the others are finite.
        bias = read_array(record, "bias", torch.float64, (classes,), finite=False)
        present = read_array(record, "present", torch.uint8, (classes,)).to(torch.bool)
        report = SolveReport()
        if targets == "numbers":
            deviations = read_array(record, "deviations", torch.float64, (classes,))
            report = SolveReport(deviations=tuple(deviations.tolist()))
        heads[name.removeprefix("head.")] = LinearHead(weight, bias, present, report)
    if "leave-one-out" not in content:
        return heads, None
    if len(heads) != 1:
        raise Malformed(f"leave-one-out: must come with one head, got {len(heads)}")
    if not record_of(content, "leave-one-out", ArrayRecord):
        return heads, ClientLeftOut()
    if targets:
        record = record_of(content, "leave-one-out", ArrayRecord)
        return heads, read_target_left_out(record, next(iter(heads.values())).feature_dim, classes)
    [head], record = heads.values(), record_of(content, "leave-one-out", ArrayRecord, {"inverse", "lengths"})
    dim = head.feature_dim
    inverse = read_array(record, "inverse", torch.float32, (dim * (dim + 1) // 2,)).to(torch.float64)
    lengths = read_array(record, "lengths", torch.float64, (classes,))
    return heads, LeaveOneOut(unpack_upper(inverse, dim), lengths)


def evaluation_reply(msg: Message, scores: Mapping[str, ClientScores]) -> Message:
    """Answer with scores by method.

    Of the confusion matrix the non-zero cells are sent, (true class, predicted class, count), (t, 3) int64, and where
    there are any, as ``pooled`` (2,) int64 the samples counted without their class and how many of them were right, and
    as ``elsewhere`` (t, 2) int64 true class and number of those whose prediction is not said, and as ``persons`` (2,)
    int64 their number and the sum of their shares right in millionths. Of the histograms the bins that are not empty,
    (class, bin, samples of the class, samples of others), (t, 4) int32; or where these are withheld, as ``labels``
    (t, 2) int32 the bins and samples of the histogram of margins for the right classes. Which of the usual temperatures
    is best, (1,) int64, or (0,) where that is not said.
    """
    content = RecordDict()
    for name, found in scores.items():
        confusion = found.confusion
        cells = confusion.matrix.nonzero()
        counts = confusion.matrix[cells[:, 0], cells[:, 1]].unsqueeze(1)
        record = ArrayRecord({"cells": to_array(torch.cat([cells, counts], dim=1))})
        if confusion.pooled_examples:
            record["pooled"] = to_array(torch.tensor([confusion.pooled_examples, confusion.pooled_correct]))
        if len(where := confusion.elsewhere.nonzero()):
            record["elsewhere"] = to_array(torch.cat([where, confusion.elsewhere[where]], dim=1))
        if confusion.persons:
            record["persons"] = to_array(torch.tensor([confusion.persons, confusion.person_shares]))
        content[f"confusion.{name}"] = record
        content[f"margins.{name}"] = ArrayRecord({"bins": to_array(found.margins.to(torch.int32))})
        if len(found.of_labels):
            content.array_records[f"margins.{name}"]["labels"] = to_array(found.of_labels.to(torch.int32))
        vote = torch.tensor([] if found.temperature is None else [found.temperature], dtype=torch.int64)
        content[f"temperature.{name}"] = ArrayRecord({"index": to_array(vote)})
    num_examples = max((found.num_examples for found in scores.values()), default=0)
    content["metrics"] = MetricRecord({"num-examples": num_examples})
    return Message(content, reply_to=msg)


@reads_replies
def read_evaluation_reply(
    reply: Message, request: StatisticsRequest, methods: tuple[str, ...]
) -> dict[str, ClientScores]:
    """Return what a client says of each method's head."""
    kinds = ("confusion", "margins", "temperature")
    check_keys("reply", reply.content, {*(f"{kind}.{name}" for name in methods for kind in kinds), "metrics"})
    whole(record_of(reply.content, "metrics", MetricRecord, {"num-examples"}), "num-examples")
    received = {}
    for name in methods:
        optional = {"pooled", "elsewhere", "persons"}
        record = record_of(reply.content, f"confusion.{name}", ArrayRecord, {"cells"}, optional)
        confusion = _read_cells(record, request.num_classes)
        record = record_of(reply.content, f"margins.{name}", ArrayRecord, {"bins"}, {"labels"})
        margins, of_labels = _read_bins(record, confusion), _read_label_bins(record, confusion)
        vote = read_array(
            record_of(reply.content, f"temperature.{name}", ArrayRecord, {"index"}), "index", torch.int64, (range(2),)
        ).tolist()
        if not all(0 <= place < len(TEMPERATURES) for place in vote):
            raise Malformed(f"index: must be of one of {len(TEMPERATURES)} temperatures, got {vote}")
        received[name] = ClientScores(confusion, margins, vote[0] if vote else None, of_labels)
    return received


def _read_cells(record: ArrayRecord, num_classes: int) -> ConfusionMatrix:
    cells = read_array(record, "cells", torch.int64, (range(num_classes**2 + 1), 3))
    true, predicted, counts = cells.unbind(dim=1)
    if _outside(cells[:, :2], num_classes):
        raise Malformed(f"cells: classes must lie in [0, {num_classes})")
    _check_counts("cells", counts)
    if len(torch.unique(true * num_classes + predicted)) < len(cells):
        raise Malformed("cells: must differ in their classes, got one cell twice")
    matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    matrix[true, predicted] = counts
    elsewhere = torch.zeros(num_classes, dtype=torch.int64)
    if "elsewhere" in record:
        true, counts = read_array(record, "elsewhere", torch.int64, (range(1, num_classes + 1), 2)).unbind(dim=1)
        if _outside(true, num_classes) or len(torch.unique(true)) < len(true):
            raise Malformed(f"elsewhere: classes must differ and lie in [0, {num_classes})")
        _check_counts("elsewhere", counts)
        elsewhere[true] = counts
    pooled, correct = read_array(record, "pooled", torch.int64, (2,)).tolist() if "pooled" in record else (0, 0)
    if not 0 <= correct <= pooled <= MAX_COUNT:
        raise Malformed(f"pooled: must be 0 <= correct <= examples <= {MAX_COUNT}, got {correct} and {pooled}")
    persons, shares = read_array(record, "persons", torch.int64, (2,)).tolist() if "persons" in record else (0, 0)
    found = ConfusionMatrix(matrix, pooled, correct, elsewhere, persons, shares)
    if not (0 <= persons <= found.num_examples and 0 <= shares <= persons * ConfusionMatrix.SHARE):
        raise Malformed(f"persons: must be at most {found.num_examples}, and their shares at most 1 each")
    return found


def _read_bins(record: ArrayRecord, confusion: ConfusionMatrix) -> Tensor:
    num_classes = len(confusion.matrix)
    bins = read_array(record, "bins", torch.int32, (range(num_classes * NUM_MARGIN_BINS + 1), 4)).to(torch.int64)
    if not len(bins):
        return bins
    classes, places, _, _ = bins.unbind(dim=1)
    if _outside(classes, num_classes) or _outside(places, NUM_MARGIN_BINS):
        raise Malformed(f"bins: classes must lie in [0, {num_classes}) and bins in [0, {NUM_MARGIN_BINS})")
    if len(torch.unique(classes * NUM_MARGIN_BINS + places)) < len(bins):
        raise Malformed("bins: must differ in class or bin, got one twice")
    if int(bins[:, 2:].min()) < 0:
        raise Malformed(f"bins: counts must be at least 0, got {int(bins[:, 2:].min())}")
    of_class = confusion.class_examples
    sums = torch.zeros(num_classes, 2, dtype=torch.int64).index_add_(0, classes, bins[:, 2:])
    if not torch.equal(sums, torch.stack([of_class, of_class.sum() - of_class], dim=1)):
        raise Malformed("bins: must hold every sample of the confusion matrix once for each class")
    return bins


def _read_label_bins(record: ArrayRecord, confusion: ConfusionMatrix) -> Tensor:
    if "labels" not in record:
        return torch.zeros(0, 2, dtype=torch.int64)
    found = read_array(record, "labels", torch.int32, (range(1, NUM_MARGIN_BINS + 1), 2)).to(torch.int64)
    places, counts = found.unbind(dim=1)
    if _outside(places, NUM_MARGIN_BINS) or len(torch.unique(places)) < len(places):
        raise Malformed(f"labels: bins must differ and lie in [0, {NUM_MARGIN_BINS})")
    _check_counts("labels", counts)
    if len(record["bins"].numpy()) or int(counts.sum()) != int(confusion.class_examples.sum()):
        raise Malformed("labels: must hold every sample of the confusion matrix once, and come without other bins")
    return found


def _outside(values: Tensor, end: int) -> bool:
    return bool(((values < 0) | (values >= end)).any())


def _check_counts(name: str, counts: Tensor) -> None:
    if _outside(counts - 1, MAX_COUNT):
        raise Malformed(f"{name}: counts must lie in [1, {MAX_COUNT}], got {counts.min()} to {counts.max()}")
