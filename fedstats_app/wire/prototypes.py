"""FedProto's rounds, ``train.prototypes``: the means of all classes down, those of a client's own classes up.

The request is that of :mod:`fedstats_app.wire.personal` and says which round it is. A client starts from a head drawn
by the seed on the pre-trained backbone in the first one, and goes on with its own model after that. The reply is an
ArrayRecord ``prototypes`` (``class-ids`` (m,) int64, ``means`` (m, D) float32) and a MetricRecord ``metrics``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.arrays import read_array, to_array
from fedstats_app.wire.personal import PersonalMetrics, PersonalTask, Prototypes, personal_content, read_personal_task
from fedstats_app.wire.reading import (
    Malformed,
    check_keys,
    number,
    reads_replies,
    reads_requests,
    record_of,
    typed,
    whole,
)
from fedstats_app.wire.statistics_checks import MAX_FEATURE, check_rows

PROTOTYPES = "train.prototypes"


def prototype_content(
    request: TrainingRequest,
    prototypes: Prototypes | None,
    predictable: Tensor,
    *,
    server_round: int,
    last: bool,
) -> RecordDict:
    """Return the content of a round; after the ``last`` one clients score their model and forget it."""
    content = personal_content(request, {}, prototypes, predictable, server_round=server_round)
    content["round"] = ConfigRecord({"last": last})
    return content


@reads_requests("for prototypes")
def read_prototype_task(msg: Message) -> tuple[PersonalTask, bool]:
    """Return what a round asks for, and whether it is the last.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    task = read_personal_task(msg)
    last = typed(record_of(msg.content, "round", ConfigRecord), "last", bool)
    if task.training.server_round < 1:
        raise Malformed(f"server-round: must count from 1, got {task.training.server_round}")
    return task, last


@dataclass(frozen=True, eq=False)
class LocalPrototypes:
    """A client's part of a round.

    Attributes
    ----------
    class_ids : Tensor
        (m,) int64, ascending: its classes.
    means : Tensor
        (m, D) float32, of the features that its own model gives their samples.
    loss : float
        Mean over its samples, in the last epoch.
    restarted : bool
        Whether it started again because it no longer had the model of the round before.
    metrics : PersonalMetrics
        Of its model; nothing is tested before the last round.
    """

    class_ids: Tensor
    means: Tensor
    loss: float
    restarted: bool
    metrics: PersonalMetrics


def prototype_reply(msg: Message, local: LocalPrototypes) -> Message:
    """Return the reply to ``train.prototypes``."""
    arrays = {"class-ids": to_array(local.class_ids), "means": to_array(local.means)}
    metrics = local.metrics.to_record(loss=float(local.loss), restarted=int(local.restarted))
    return Message(RecordDict({"prototypes": ArrayRecord(arrays), "metrics": metrics}), reply_to=msg)


@reads_replies
def read_prototype_reply(reply: Message, num_classes: int, feature_dim: int) -> LocalPrototypes:
    """Return a client's part of a round.

    Raises
    ------
    RejectedReply
        If it failed, or cannot be class means of anybody's features.
    """
    check_keys("reply", reply.content, {"prototypes", "metrics"})
    metrics = PersonalMetrics.read(reply.content, "loss", "restarted")
    arrays = record_of(reply.content, "prototypes", ArrayRecord, {"class-ids", "means"})
    ids = read_array(arrays, "class-ids", torch.int64, (range(num_classes + 1),))
    check_rows(ids, torch.ones_like(ids), num_classes, 1)
    means = read_array(arrays, "means", torch.float32, (len(ids), feature_dim))
    if len(ids) and float(means.abs().max()) > MAX_FEATURE:
        raise Malformed(f"means: must lie within {MAX_FEATURE:.0e}, got {float(means.abs().max()):.3g}")
    record = reply.content.metric_records["metrics"]
    return LocalPrototypes(ids, means, number(record, "loss"), bool(whole(record, "restarted", 0, 1)), metrics)
