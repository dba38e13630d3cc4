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

from fedstats_app.wire.arrays import check_keys, read_array, to_array
from fedstats_app.wire.errors import RejectedReply, RejectedRequest
from fedstats_app.wire.personal import (
    PersonalMetrics,
    PersonalTask,
    Prototypes,
    number_metric,
    personal_content,
    read_personal_task,
    refuse_failure,
    whole_metric,
)
from fedstats_app.wire.statistics_checks import MAX_FEATURE, check_rows
from fedstats_app.wire.training import TrainingRequest

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


def read_prototype_task(msg: Message) -> tuple[PersonalTask, bool]:
    """Return what a round asks for, and whether it is the last.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    task = read_personal_task(msg)
    record = msg.content.get("round")
    last = record.get("last") if isinstance(record, ConfigRecord) else None
    if not isinstance(last, bool) or task.training.server_round < 1:
        raise RejectedRequest(f"round: must say whether it is the last, got {last!r:.40}, and count from 1")
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


def read_prototype_reply(reply: Message, num_classes: int, feature_dim: int) -> LocalPrototypes:
    """Return a client's part of a round.

    Raises
    ------
    RejectedReply
        If it failed, or cannot be class means of anybody's features.
    """
    refuse_failure(reply)
    check_keys("reply", reply.content, {"prototypes", "metrics"})
    metrics = PersonalMetrics.read(reply.content["metrics"], frozenset({"loss", "restarted"}))
    arrays = reply.content["prototypes"]
    if not isinstance(arrays, ArrayRecord):
        raise RejectedReply(f"prototypes: must be an ArrayRecord, got {type(arrays).__name__}")
    check_keys("prototypes", arrays, {"class-ids", "means"})
    ids = read_array(arrays, "class-ids", torch.int64, (None,), max_rows=num_classes)
    check_rows(ids, torch.ones_like(ids), num_classes, 1)
    means = read_array(arrays, "means", torch.float32, (len(ids), feature_dim))
    if len(ids) and float(means.abs().max()) > MAX_FEATURE:
        raise RejectedReply(f"means: must lie within {MAX_FEATURE:.0e}, got {float(means.abs().max()):.3g}")
    record = reply.content.metric_records["metrics"]
    return LocalPrototypes(
        ids, means, number_metric(record, "loss"), bool(whole_metric(record, "restarted", 1)), metrics
    )
