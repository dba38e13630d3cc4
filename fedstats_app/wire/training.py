"""Training with Flower's own ``train`` messages, and scoring of a model that is being trained.

A request is what Flower's FedAvg family sends, an ArrayRecord ``arrays`` (what is trained) and a ConfigRecord
``config`` (everything else that a client must know: it keeps nothing between messages), and an ArrayRecord ``fixed``
with what the model has besides and is not trained. A reply to ``train`` is an ArrayRecord ``arrays`` and a MetricRecord
``metrics``, one to ``evaluate.model`` the latter alone. One to ``train.losses`` has an ArrayRecord ``losses`` instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.statistics.accumulation import Addable
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.start import TEMPERATURES
from fedstats_app.wire.arrays import read_array, read_tensors, to_array, to_record
from fedstats_app.wire.reading import (
    MAX_COUNT,
    Malformed,
    check_keys,
    counted,
    from_values,
    measured,
    metrics_reader,
    metrics_reply,
    number,
    read_metrics,
    reads_replies,
    reads_requests,
    record_of,
    to_values,
    whole,
)

EVALUATE_MODEL = "evaluate.model"
TRAINING_LOSSES = "train.losses"

# A larger mean loss is no loss, and a sum of such could overflow.
MAX_MEAN_LOSS = 1e30

# Flower's FedProx puts this one into the config itself.
PROXIMAL_MU = "proximal-mu"


@dataclass(frozen=True)
class TrainingTask:
    """A request as a client reads it.

    Attributes
    ----------
    request : TrainingRequest
        With the proximal term of FedProx, if any, in its options.
    server_round : int
        The absolute round.
    trained, fixed : dict
        float32 tensors by name: what is trained, and what the head has besides (``head.weight``, ``head.bias``).
    """

    request: TrainingRequest
    server_round: int
    trained: dict[str, Tensor]
    fixed: dict[str, Tensor]


def training_content(
    request: TrainingRequest, arrays: ArrayRecord, fixed: ArrayRecord, *, server_round: int = 1
) -> RecordDict:
    """Write what :func:`read_training_task` reads: the request, what is trained, and what the head has besides."""
    config = ConfigRecord({**to_values(request), "server-round": server_round})
    return RecordDict({"config": config, "arrays": arrays, "fixed": fixed})


@reads_requests("to train")
def read_training_task(msg: Message) -> TrainingTask:
    """Read a message of type ``train``, ``train.losses`` or ``evaluate.model``."""
    config = record_of(msg.content, "config", ConfigRecord)
    request = from_values(TrainingRequest, config)
    if PROXIMAL_MU in config:
        # FedProx sends what its user gave it, and 1 is a number too.
        given = config[PROXIMAL_MU]
        term = float(given) if type(given) is int else number(config, PROXIMAL_MU)
        request = replace(request, options=replace(request.options, proximal_mu=term))
    trained, fixed = (read_tensors(msg.content, name, torch.float32) for name in ("arrays", "fixed"))
    return TrainingTask(request, whole(config, "server-round"), trained, fixed)


@dataclass(frozen=True)
class NumExamples:
    """Number of samples that a client has for a request."""

    num_examples: int = counted()


@dataclass(frozen=True)
class TrainingMetrics(NumExamples):
    """Metrics of a client's training: number of samples, mean loss of its last epoch, seconds."""

    loss: float = measured()
    seconds: float = measured()


def training_reply(
    msg: Message, trained: Mapping[str, Tensor], *, num_examples: int, loss: float, seconds: float
) -> Message:
    """Answer as a client that trained."""
    return metrics_reply(msg, TrainingMetrics(num_examples, loss, seconds), arrays=to_record(trained))


def losses_reply(msg: Message, losses: Sequence[float], num_examples: int) -> Message:
    """Answer ``train.losses`` with mean losses at ``TEMPERATURES``, over at least one sample."""
    record = ArrayRecord({"by-temperature": to_array(torch.tensor(losses, dtype=torch.float64))})
    return metrics_reply(msg, NumExamples(num_examples), losses=record)


def nothing_to_train_reply(msg: Message) -> Message:
    """Answer as a client without samples: no failure, and nothing to average."""
    return metrics_reply(msg, NumExamples(0))


@reads_replies
def check_training_reply(
    reply: Message, shapes: Mapping[str, tuple[int, ...]], num_examples: int | None = None
) -> TrainingMetrics:
    """Check that a reply can be averaged: arrays of the shapes that went down, float32 and finite, and a weight.

    With ``num_examples``, what the client had when it sent its statistics, its weight now must be the same. A client
    with nothing to train on has 0 in the metrics, and its reply is no update.
    """
    content = reply.content
    if "arrays" not in content and num_examples in (None, 0):
        return TrainingMetrics(_read_number(content, 0, 0))
    low, high = (1, MAX_COUNT) if num_examples is None else (num_examples, num_examples)
    metrics = read_metrics(content, TrainingMetrics, "arrays")
    whole(content.metric_records["metrics"], "num-examples", low, high)
    arrays = record_of(content, "arrays", ArrayRecord, set(shapes))
    for name, shape in shapes.items():
        read_array(arrays, name, torch.float32, shape)
    return metrics


@dataclass(frozen=True)
class TrainingLosses:
    """Metrics of a head at a client: mean losses, in nats, at ``TEMPERATURES``, and the number of training samples.

    Without samples there are none.
    """

    losses: tuple[float, ...]
    num_examples: int


@reads_replies
def read_losses_reply(reply: Message, num_examples: int) -> TrainingLosses:
    """Read what a client answered to ``train.losses``.

    It must have as many samples as when it sent its statistics.
    """
    _read_number(reply.content, num_examples, num_examples, *(["losses"] if num_examples else []))
    if not num_examples:
        return TrainingLosses((), 0)
    record = record_of(reply.content, "losses", ArrayRecord, {"by-temperature"})
    losses = read_array(record, "by-temperature", torch.float64, (len(TEMPERATURES),)).tolist()
    if not all(0.0 <= loss <= MAX_MEAN_LOSS for loss in losses):
        raise Malformed(f"by-temperature: must lie in [0, {MAX_MEAN_LOSS:g}], got {min(losses):g} to {max(losses):g}")
    return TrainingLosses(tuple(losses), num_examples)


def _read_number(content: RecordDict, low: int, high: int, *others: str) -> int:
    """Read the number of samples of a reply that says no other number."""
    check_keys("reply", content, {*others, "metrics"})
    return whole(record_of(content, "metrics", MetricRecord, {"num-examples"}), "num-examples", low, high)


@dataclass(frozen=True)
class EvaluationCounts(Addable):
    """Sums over samples that can be added: how many, how many right, and the cross-entropy in nats."""

    num_examples: int = counted()
    num_correct: int = counted("num_examples")
    loss_sum: float = measured()


# Replies to ``evaluate.model``.
read_model_evaluation_reply = metrics_reader(EvaluationCounts)
