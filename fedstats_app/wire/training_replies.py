"""Replies to ``train``, ``arrays`` and a MetricRecord ``metrics``, and to ``evaluate.model``; and their checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.wire.arrays import check_keys, read_array
from fedstats_app.wire.errors import RejectedReply
from fedstats_app.wire.statistics_checks import MAX_COUNT
from fedstats_app.wire.training import to_record

METRICS = {"num-examples", "loss", "seconds"}
EVALUATION_METRICS = {"num-examples", "num-correct", "loss-sum"}


def training_reply(
    msg: Message, trained: Mapping[str, Tensor], *, num_examples: int, loss: float, seconds: float
) -> Message:
    """Return the reply of a client that trained."""
    metrics = MetricRecord({"num-examples": num_examples, "loss": float(loss), "seconds": float(seconds)})
    return Message(RecordDict({"arrays": to_record(trained), "metrics": metrics}), reply_to=msg)


def nothing_to_train_reply(msg: Message) -> Message:
    """Return the reply of a client without samples: no failure, and nothing to average."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 0})}), reply_to=msg)


@dataclass(frozen=True)
class TrainingMetrics:
    """What a client says of its training: number of samples, mean loss of its last epoch, seconds."""

    num_examples: int
    loss: float = 0.0
    seconds: float = 0.0


def check_training_reply(
    reply: Message, shapes: Mapping[str, tuple[int, ...]], num_examples: int | None = None
) -> TrainingMetrics:
    """Check that a reply can be averaged: the same float32 arrays that went down, finite, and a weight.

    Parameters
    ----------
    reply : Message
        From anybody.
    shapes : mapping
        Of the arrays that went down, by name.
    num_examples : int, optional
        How many samples the client had when it sent its statistics: its weight now must be the same.

    Returns
    -------
    TrainingMetrics
        With ``num_examples`` 0 for a client that has nothing to train on; its reply is no update.

    Raises
    ------
    RejectedReply
        If it failed, or must not be used.
    """
    if reply.has_error():
        raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")
    metrics = reply.content.get("metrics")
    if not isinstance(metrics, MetricRecord):
        raise RejectedReply("metrics: must be a MetricRecord")
    if "arrays" not in reply.content and num_examples in (None, 0):
        check_keys("reply", reply.content, {"metrics"})
        check_keys("metrics", metrics, {"num-examples"})
        return TrainingMetrics(_count(metrics["num-examples"], 0, 0))
    check_keys("reply", reply.content, {"arrays", "metrics"})
    check_keys("metrics", metrics, METRICS)
    low, high = (1, MAX_COUNT) if num_examples is None else (num_examples, num_examples)
    count = _count(metrics["num-examples"], low, high)
    loss, seconds = (_finite(metrics[name], name) for name in ("loss", "seconds"))
    arrays = reply.content["arrays"]
    if not isinstance(arrays, ArrayRecord):
        raise RejectedReply(f"arrays: must be an ArrayRecord, got {type(arrays).__name__}")
    check_keys("arrays", arrays, set(shapes))
    for name, shape in shapes.items():
        read_array(arrays, name, torch.float32, shape)
    return TrainingMetrics(count, loss, seconds)


@dataclass(frozen=True)
class EvaluationCounts:
    """Sums over samples that can be added: how many, how many right, and the cross-entropy in nats."""

    num_examples: int = 0
    num_correct: int = 0
    loss_sum: float = 0.0

    def __add__(self, other: EvaluationCounts) -> EvaluationCounts:
        return EvaluationCounts(
            self.num_examples + other.num_examples,
            self.num_correct + other.num_correct,
            self.loss_sum + other.loss_sum,
        )


def model_evaluation_reply(msg: Message, counts: EvaluationCounts) -> Message:
    """Return the reply to ``evaluate.model``."""
    metrics = MetricRecord(
        {
            "num-examples": counts.num_examples,
            "num-correct": counts.num_correct,
            "loss-sum": float(counts.loss_sum),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def read_model_evaluation_reply(reply: Message) -> EvaluationCounts:
    """Return what a client counted.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    if reply.has_error():
        raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")
    check_keys("reply", reply.content, {"metrics"})
    metrics = reply.content["metrics"]
    if not isinstance(metrics, MetricRecord):
        raise RejectedReply("metrics: must be a MetricRecord")
    check_keys("metrics", metrics, EVALUATION_METRICS)
    num_examples = _count(metrics["num-examples"], 0, MAX_COUNT)
    return EvaluationCounts(
        num_examples, _count(metrics["num-correct"], 0, num_examples), _finite(metrics["loss-sum"], "loss-sum")
    )


def _count(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        allowed = f"{low}" if low == high else f"in [{low}, {high}]"
        raise RejectedReply(f"count: must be a whole number, {allowed}, got {value!r:.40}")
    return value


def _finite(value: object, name: str) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0.0 <= value < math.inf:
        raise RejectedReply(f"{name}: must be a finite number of at least 0, got {value!r:.40}")
    return float(value)
