"""Federated evaluation of several labels or numbers: histograms of scores by label, or moments of errors, come up."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedstats_app.heads.scores import NUM_MARGIN_BINS
from fedstats_app.heads.target_scores import NUM_MOMENTS, TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.wire.arrays import read_array, to_array
from fedstats_app.wire.reading import MAX_COUNT, Malformed, check_keys, reads_replies, record_of, whole


def target_left_out_record(left_out: TargetLeaveOneOut) -> ArrayRecord:
    """Write what leave-one-out scores of labels take."""
    record = ArrayRecord({"inverse": to_array(pack_upper(left_out.inverse).to(torch.float32))})
    record["mean"], record["ends"] = to_array(left_out.mean), to_array(left_out.ends)
    record["number"] = to_array(torch.tensor([left_out.number]))
    return record


def read_target_left_out(record: ArrayRecord, dim: int, num_targets: int) -> TargetLeaveOneOut:
    """Read what :func:`target_left_out_record` wrote, or raise :class:`Malformed`."""
    inverse = read_array(record, "inverse", torch.float32, (dim * (dim + 1) // 2,)).to(torch.float64)
    mean, ends = (
        read_array(record, name, torch.float64, shape) for name, shape in (("mean", (dim,)), ("ends", (2, num_targets)))
    )
    number = int(read_array(record, "number", torch.int64, (1,)))
    return TargetLeaveOneOut(unpack_upper(inverse, dim), mean, ends, max(number, 1))


def target_evaluation_reply(msg: Message, scores: Mapping[str, TargetScores]) -> Message:
    """Answer with scores by method.

    Of labels ``bins`` (t, 4) int32, as of classes: label, bin, positive and negative samples in it. Of numbers
    ``moments`` (C, 6) float64.
    """
    content = RecordDict()
    for name, found in scores.items():
        arrays = {"bins": to_array(found.histograms.filled.to(torch.int32))}
        if found.kind == ("numbers",):
            arrays = {"moments": to_array(found.moments)}
        content[f"targets.{name}"] = ArrayRecord(arrays)
    number = max((found.num_examples for found in scores.values()), default=0)
    content["metrics"] = MetricRecord({"num-examples": number})
    return Message(content, reply_to=msg)


@reads_replies
def read_target_evaluation_reply(
    reply: Message, kind: str, num_targets: int, methods: tuple[str, ...]
) -> dict[str, TargetScores]:
    """Return what a client says of each method's head."""
    check_keys("reply", reply.content, {*(f"targets.{name}" for name in methods), "metrics"})
    number = whole(record_of(reply.content, "metrics", MetricRecord, {"num-examples"}), "num-examples")
    received = {}
    for name in methods:
        scores = TargetScores.zeros(kind, num_targets)
        record = record_of(reply.content, f"targets.{name}", ArrayRecord)
        if kind == "labels":
            bins = read_array(record, "bins", torch.int32, (range(num_targets * NUM_MARGIN_BINS + 1), 4)).long()
            low, high = (
                torch.zeros(4, dtype=torch.int64),
                torch.tensor([num_targets, NUM_MARGIN_BINS, MAX_COUNT, MAX_COUNT]),
            )
            if bool(((bins < low) | (bins >= high)).any()):
                raise Malformed("bins: must be (label, bin, positives, negatives) within their ranges")
            scores.histograms.add_(bins)
            if int((scores.histograms.positives + scores.histograms.negatives).sum(dim=1).max()) > number:
                raise Malformed(f"bins: must hold at most {number} samples of a label (num-examples)")
        else:
            moments = read_array(record, "moments", torch.float64, (num_targets, NUM_MOMENTS))
            counts, squares = moments[:, [0, 5]], moments[:, [2, 3, 4]]
            if bool((counts < 0).any()) or bool((counts > number).any()) or bool((squares < 0).any()):
                raise Malformed(f"moments: must be those of at most {number} samples (num-examples)")
            scores.moments.copy_(moments)
        received[name] = TargetScores((kind,), scores.histograms, scores.moments, number)
    return received
