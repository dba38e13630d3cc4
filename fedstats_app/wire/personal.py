"""Models of the clients' own, which stay on their nodes: ``train.personalise``, and what all such messages share.

The request is that of a training round (``config``, ``arrays``, ``fixed``), in which ``arrays`` is the model to start
from: nothing, for a head drawn by the seed on the node's pre-trained backbone; ``head.weight`` and ``head.bias``, for
that head on it; or a whole model. A ConfigRecord ``personal`` says which classes may be predicted, and an ArrayRecord
``prototypes``, where there is one, holds the class means to hold features near. The reply is a MetricRecord
``metrics``: how many of a client's own test samples are predicted right, and nothing by class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.training.alignment import ALIGNMENT_FORMS
from fedstats_app.wire.arrays import check_keys, read_array, to_array
from fedstats_app.wire.errors import RejectedReply, RejectedRequest
from fedstats_app.wire.statistics_checks import MAX_COUNT
from fedstats_app.wire.training import TrainingRequest, TrainingTask, read_training_task, to_record

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
        if self.means.ndim != 2 or self.present.shape != self.means.shape[:1] or self.present.dtype != torch.bool:
            raise ValueError(
                f"prototypes must be (C, D) and present (C,) bool, "
                f"got {tuple(self.means.shape)}, {tuple(self.present.shape)} {self.present.dtype}"
            )
        if self.form not in ALIGNMENT_FORMS:
            raise ValueError(f"form must be one of {', '.join(ALIGNMENT_FORMS)}, got {self.form!r}")
        if not 0.0 <= self.weight < math.inf:
            raise ValueError(f"weight must be at least 0 and finite, got {self.weight}")


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
    content = RecordDict(
        {
            "config": ConfigRecord({**request.to_config(), "server-round": server_round}),
            "arrays": to_record(start),
            "fixed": ArrayRecord(),
            "personal": ConfigRecord({"absent-classes": (~predictable).nonzero().squeeze(1).tolist()}),
        }
    )
    if prototypes is not None:
        means, present = to_array(prototypes.means.float()), to_array(prototypes.present.to(torch.uint8))
        content["prototypes"] = ArrayRecord({"means": means, "present": present})
        content["alignment"] = ConfigRecord({"form": prototypes.form, "weight": float(prototypes.weight)})
    return content


def read_personal_task(msg: Message) -> PersonalTask:
    """Return what a message with :func:`personal_content` asks for.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    training = read_training_task(msg)
    num_classes = training.request.num_classes
    try:
        personal = msg.content["personal"]
        if not isinstance(personal, ConfigRecord):
            raise TypeError(f"personal must be a ConfigRecord, got {type(personal).__name__}")
        predictable = torch.ones(num_classes, dtype=torch.bool)
        predictable[_class_ids(personal["absent-classes"], num_classes)] = False
        return PersonalTask(training, _read_prototypes(msg.content, num_classes), predictable)
    except (KeyError, IndexError, TypeError, ValueError, RejectedReply) as error:
        raise RejectedRequest(f"not a request to personalise: {type(error).__name__}: {error!s:.200}") from error


def _read_prototypes(content: RecordDict, num_classes: int) -> Prototypes | None:
    if "prototypes" not in content:
        return None
    arrays, alignment = content["prototypes"], content["alignment"]
    if not isinstance(arrays, ArrayRecord) or not isinstance(alignment, ConfigRecord):
        raise TypeError("prototypes must be an ArrayRecord and alignment a ConfigRecord")
    dim = (*arrays["means"].shape, 0)[1]  # claimed; what comes is checked against it
    means = read_array(arrays, "means", torch.float32, (num_classes, dim))
    present = read_array(arrays, "present", torch.uint8, (num_classes,)).to(torch.bool)
    return Prototypes(means, present, str(alignment["form"]), float(str(alignment["weight"])))


def _class_ids(values: object, num_classes: int) -> Tensor:
    if not isinstance(values, list) or any(type(value) is not int or not 0 <= value < num_classes for value in values):
        raise ValueError(f"absent-classes must be class ids in [0, {num_classes}), got {values!r:.60}")
    return torch.tensor(values, dtype=torch.int64)


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
        """Return the record that travels, with further metrics; underscores become hyphens."""
        values = {one.name: getattr(self, one.name) for one in fields(self)} | more
        return MetricRecord({name.replace("_", "-"): value for name, value in values.items()})

    @classmethod
    def read(cls, record: object, more: frozenset[str] = frozenset()) -> PersonalMetrics:
        """Return the metrics of a record with exactly these keys and those of ``more``.

        Raises
        ------
        RejectedReply
            If a key is missing or unknown, or a number cannot be.
        """
        if not isinstance(record, MetricRecord):
            raise RejectedReply(f"metrics: must be a MetricRecord, got {type(record).__name__}")
        check_keys("metrics", record, {one.name.replace("_", "-") for one in fields(cls)} | more)
        num_test = whole_metric(record, "num-test", MAX_COUNT)
        return cls(
            whole_metric(record, "num-examples", MAX_COUNT),
            num_test,
            whole_metric(record, "correct-before", num_test),
            whole_metric(record, "correct-after", num_test),
            whole_metric(record, "forward-passes", MAX_FORWARD_PASSES),
            number_metric(record, "seconds"),
        )


def personal_reply(msg: Message, metrics: PersonalMetrics) -> Message:
    """Return the reply to ``train.personalise``."""
    return Message(RecordDict({"metrics": metrics.to_record()}), reply_to=msg)


def read_personal_reply(reply: Message) -> PersonalMetrics:
    """Return what a client says of its personal model.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    refuse_failure(reply)
    check_keys("reply", reply.content, {"metrics"})
    return PersonalMetrics.read(reply.content["metrics"])


def refuse_failure(reply: Message) -> None:
    """Refuse a reply that is an error, with the error's reason."""
    if reply.has_error():
        raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")


def whole_metric(record: MetricRecord, name: str, most: int) -> int:
    """Return a count from 0 to ``most``, or refuse it."""
    value = record[name]
    if type(value) is not int or not 0 <= value <= most:
        raise RejectedReply(f"{name}: must be a whole number from 0 to {most}, got {value!r:.40}")
    return value


def number_metric(record: MetricRecord, name: str, most: float = math.inf) -> float:
    """Return a finite number from 0 to ``most``, or refuse it."""
    value = record[name]
    if type(value) is not float or not 0.0 <= value <= most or math.isinf(value):
        raise RejectedReply(f"{name}: must be a finite number from 0 to {most:g}, got {value!r:.40}")
    return value
