"""Models of the clients' own, which stay on their nodes: ``train.personalise``, and what all such messages share.

The request is that of a training round (``config``, ``arrays``, ``fixed``), in which ``arrays`` is the model to start
from: nothing, for a head drawn by the seed on the node's pre-trained backbone; ``head.weight`` and ``head.bias``, for
that head on it; or a whole model. A ConfigRecord ``personal`` says which classes may be predicted, and an ArrayRecord
``prototypes``, where there is one, holds the class means to hold features near. The reply is a MetricRecord
``metrics``: how many of a client's own test samples are predicted right, and nothing by class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.training.local import check_alignment
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, read_array, to_array, to_record
from fedstats_app.wire.reading import (
    MAX_COUNT,
    Malformed,
    check_keys,
    list_of,
    number,
    reads_replies,
    reads_requests,
    record_of,
    to_values,
    typed,
    whole,
)
from fedstats_app.wire.training import TrainingTask, read_training_task, training_content

PERSONALISE = "train.personalise"

# More epochs than anybody runs over more samples than anybody has.
MAX_FORWARD_PASSES = 2**53


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Class means that a client holds its features near while it trains.

    Attributes
    ----------
    means : Tensor
        (C, D) float32; the row of a class without one is zero.
    present : Tensor
        (C,) bool, classes that have one.
    form : str
        One of ``fedstats_app.training.ALIGNMENT_FORMS``.
    weight : float
        Of the term in the loss, at least 0.
    """

    means: Tensor
    present: Tensor
    form: str
    weight: float

    def __post_init__(self) -> None:
        check_alignment(self.form, self.means, self.present, self.weight)


@dataclass(frozen=True)
class PersonalTask:
    """A request as a client reads it.

    Attributes
    ----------
    training : TrainingTask
        How to train, and in ``trained`` the model to start from: nothing, a head, or a whole model.
    prototypes : Prototypes or None
        What to hold features near.
    predictable : Tensor
        (C,) bool, classes that the model may predict when it is scored.
    """

    training: TrainingTask
    prototypes: Prototypes | None
    predictable: Tensor


def personal_content(
    request: TrainingRequest,
    start: Mapping[str, Tensor],
    prototypes: Prototypes | None,
    predictable: Tensor,
    *,
    server_round: int = 1,
) -> RecordDict:
    """Return the content of a request to train a model of one's own.

    Parameters
    ----------
    request : TrainingRequest
        How to train, and which samples are for testing.
    start : mapping of str to Tensor
        float32, finite: none, ``head.weight`` and ``head.bias``, or all that a model has trained.
    prototypes, predictable, server_round
        As :class:`PersonalTask`.
    """
    content = training_content(request, to_record(start), ArrayRecord(), server_round=server_round)
    content["personal"] = ConfigRecord({"absent-classes": (~predictable).nonzero().squeeze(1).tolist()})
    if prototypes is not None:
        means, present = to_array(prototypes.means.float()), to_array(prototypes.present.to(torch.uint8))
        content["prototypes"] = ArrayRecord({"means": means, "present": present})
        content["alignment"] = ConfigRecord({"form": prototypes.form, "weight": float(prototypes.weight)})
    return content


@reads_requests("to personalise")
def read_personal_task(msg: Message) -> PersonalTask:
    """Return what a message with :func:`personal_content` asks for.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    training = read_training_task(msg)
    num_classes = training.request.num_classes
    absent = list_of(record_of(msg.content, "personal", ConfigRecord), "absent-classes", int)
    if not all(0 <= one < num_classes for one in absent):
        raise Malformed(f"absent-classes: must be class ids in [0, {num_classes}), got {absent!r:.60}")
    predictable = torch.ones(num_classes, dtype=torch.bool)
    predictable[torch.tensor(absent, dtype=torch.int64)] = False
    prototypes = _read_prototypes(msg.content, num_classes) if "prototypes" in msg.content else None
    return PersonalTask(training, prototypes, predictable)


def _read_prototypes(content: RecordDict, num_classes: int) -> Prototypes:
    arrays, alignment = record_of(content, "prototypes", ArrayRecord), record_of(content, "alignment", ConfigRecord)
    means = read_array(arrays, "means", torch.float32, (num_classes, range(1, MAX_FEATURE_DIM + 1)))
    present = read_array(arrays, "present", torch.uint8, (num_classes,)).to(torch.bool)
    return Prototypes(means, present, typed(alignment, "form", str), number(alignment, "weight"))


@dataclass(frozen=True)
class PersonalMetrics:
    """What a client says of its personal model.

    Attributes
    ----------
    num_examples : int
        Samples that it trained on.
    num_test : int
        Samples that it kept for testing; 0 where nothing was tested.
    correct_before, correct_after : int
        How many of these the model to start from, and the personal one, predict right.
    forward_passes : int
        Compute, a backward pass counting as two.
    seconds : float
        That it took.
    """

    num_examples: int = 0
    num_test: int = 0
    correct_before: int = 0
    correct_after: int = 0
    forward_passes: int = 0
    seconds: float = 0.0

    def to_record(self, **more: float) -> MetricRecord:
        """Return the record that travels, with further metrics."""
        return MetricRecord({**to_values(self), **more})

    @classmethod
    def read(cls, content: RecordDict, *more: str) -> PersonalMetrics:
        """Return the metrics of a reply's record ``metrics`` with exactly these keys and those of ``more``.

        Raises
        ------
        Malformed
            If a key is missing or unknown, or a number cannot be.
        """
        record = record_of(content, "metrics", MetricRecord, {*to_values(cls()), *more})
        num_test = whole(record, "num-test", 0, MAX_COUNT)
        return cls(
            whole(record, "num-examples", 0, MAX_COUNT),
            num_test,
            whole(record, "correct-before", 0, num_test),
            whole(record, "correct-after", 0, num_test),
            whole(record, "forward-passes", 0, MAX_FORWARD_PASSES),
            number(record, "seconds"),
        )


def personal_reply(msg: Message, metrics: PersonalMetrics) -> Message:
    """Return the reply to ``train.personalise``."""
    return Message(RecordDict({"metrics": metrics.to_record()}), reply_to=msg)


@reads_replies
def read_personal_reply(reply: Message) -> PersonalMetrics:
    """Return what a client says of its personal model.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    check_keys("reply", reply.content, {"metrics"})
    return PersonalMetrics.read(reply.content)
