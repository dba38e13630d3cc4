"""Models of the clients' own, which stay on their nodes.

They are trained by ``train.personalise`` and ``train.prototypes`` (FedProto), or solved by ``train.personal_heads``;
``evaluate.personal`` scores the federation's own heads on each client's samples.

Requests to train are those of a training round (``config``, ``arrays``, ``fixed``), in which ``arrays`` is the model to
start from: nothing, for a head drawn by the seed on the node's pre-trained backbone; ``head.weight`` and ``head.bias``,
for that head on it; or a whole model. A ConfigRecord ``personal`` lists the classes that must not be predicted, and an
ArrayRecord ``prototypes``, if there is one, holds the class means to hold features near. For FedProto a ConfigRecord
``round`` says whether the round is the last, and the reply has an ArrayRecord ``prototypes`` (``class-ids`` (m,) int64,
``means`` (m, D) float32) besides.

Personal heads are solved from an ArrayRecord ``statistics`` (``class-counts`` (C,) int64, ``class-sums`` (C, D),
``gram`` (D (D + 1) / 2,), its upper triangle row by row) and a ConfigRecord ``solver``: a method and all its options by
their run-config keys, its regulariser as a number.

Every reply has a MetricRecord ``metrics``: how many of a client's own test samples are predicted right, and nothing by
class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.methods import METHODS, PERSONAL_METHODS, ConfiguredMethod
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.training.local import check_alignment
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, WIRE_DTYPES, read_array, to_record
from fedstats_app.wire.reading import (
    MAX_COUNT,
    Malformed,
    check_keys,
    counted,
    list_of,
    measured,
    metrics_reader,
    metrics_reply,
    number,
    read_metrics,
    reads_replies,
    reads_requests,
    record_of,
    typed,
    whole,
)
from fedstats_app.wire.statistics import MAX_GRAM_DIM
from fedstats_app.wire.statistics_checks import MAX_FEATURE, check_rows
from fedstats_app.wire.training import TrainingTask, read_training_task, training_content

PERSONALISE, PROTOTYPES = "train.personalise", "train.prototypes"
PERSONAL_HEADS, EVALUATE_PERSONAL = "train.personal_heads", "evaluate.personal"

# Above any real number of epochs times samples.
MAX_FORWARD_PASSES = 2**53
MAX_GRID = 1000


@dataclass(frozen=True)
class PersonalMetrics:
    """What a client says of its personal model.

    Attributes
    ----------
    num_examples : int
        Samples that it trained on.
    num_test : int
        Samples that it kept for testing; 0 if nothing was tested.
    correct_before, correct_after : int
        How many of these the model to start from, and the personal one, predict right.
    forward_passes : int
        Compute, a backward pass counting as two.
    seconds : float
        Time it took.
    """

    num_examples: int = counted()
    num_test: int = counted()
    correct_before: int = counted("num_test")
    correct_after: int = counted("num_test")
    forward_passes: int = counted(MAX_FORWARD_PASSES)
    seconds: float = measured()


@dataclass(frozen=True)
class HeadMetrics(PersonalMetrics):
    """What a client says of its head in closed form, beside which "before" is the federation's.

    Attributes
    ----------
    mixing : float
        Weight of its own statistics, from 0 to 1.
    """

    mixing: float = measured(1.0)


# Replies to ``train.personalise`` and ``train.personal_heads``.
read_personal_reply = metrics_reader(PersonalMetrics)
read_personal_heads_reply = metrics_reader(HeadMetrics)


# A model to train: one shot, or FedProto's rounds


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
    """A request as a client reads it: how to train, and in ``training.trained`` the model to start from.

    ``predictable`` is (C,) bool, the classes that the model may predict when it is scored.
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
    """Write a request to train a model of one's own, which :func:`read_personal_task` reads.

    ``start`` holds float32, finite tensors: none, ``head.weight`` and ``head.bias``, or all that a model has trained.
    """
    content = training_content(request, to_record(start), ArrayRecord(), server_round=server_round)
    content["personal"] = ConfigRecord({"absent-classes": (~predictable).nonzero().squeeze(1).tolist()})
    if prototypes is not None:
        content["prototypes"] = to_record(
            {"means": prototypes.means.float(), "present": prototypes.present.to(torch.uint8)}
        )
        content["alignment"] = ConfigRecord({"form": prototypes.form, "weight": float(prototypes.weight)})
    return content


@reads_requests("to personalise")
def read_personal_task(msg: Message) -> PersonalTask:
    """Read a message with :func:`personal_content`."""
    content, training = msg.content, read_training_task(msg)
    num_classes = training.request.num_classes
    absent = list_of(record_of(content, "personal", ConfigRecord), "absent-classes", int)
    if not all(0 <= one < num_classes for one in absent):
        raise Malformed(f"absent-classes: must be class ids in [0, {num_classes}), got {absent!r:.60}")
    predictable = torch.ones(num_classes, dtype=torch.bool)
    predictable[torch.tensor(absent, dtype=torch.int64)] = False
    if "prototypes" not in content:
        return PersonalTask(training, None, predictable)
    arrays, alignment = record_of(content, "prototypes", ArrayRecord), record_of(content, "alignment", ConfigRecord)
    means = read_array(arrays, "means", torch.float32, (num_classes, range(1, MAX_FEATURE_DIM + 1)))
    present = read_array(arrays, "present", torch.uint8, (num_classes,)).to(torch.bool)
    prototypes = Prototypes(means, present, typed(alignment, "form", str), number(alignment, "weight"))
    return PersonalTask(training, prototypes, predictable)


def prototype_content(
    request: TrainingRequest, prototypes: Prototypes | None, predictable: Tensor, *, server_round: int, last: bool
) -> RecordDict:
    """Write the request of a round of FedProto; after the ``last`` one clients score their model and forget it."""
    content = personal_content(request, {}, prototypes, predictable, server_round=server_round)
    content["round"] = ConfigRecord({"last": last})
    return content


@reads_requests("for prototypes")
def read_prototype_task(msg: Message) -> tuple[PersonalTask, bool]:
    """Read what a round asks for, and whether it is the last."""
    task = read_personal_task(msg)
    last = typed(record_of(msg.content, "round", ConfigRecord), "last", bool)
    if task.training.server_round < 1:
        raise Malformed(f"server-round: must count from 1, got {task.training.server_round}")
    return task, last


@dataclass(frozen=True)
class PrototypeMetrics(PersonalMetrics):
    """What a client says of its own model in a round of FedProto; nothing is tested before the last round.

    Attributes
    ----------
    loss : float
        Mean over its samples, in the last epoch.
    restarted : int
        1 if it started again because it no longer had the model of the round before, else 0.
    """

    loss: float = measured()
    restarted: int = counted(1)


@dataclass(frozen=True, eq=False)
class LocalPrototypes:
    """A client's part of a round.

    Attributes
    ----------
    class_ids : Tensor
        (m,) int64, ascending: its classes.
    means : Tensor
        (m, D) float32, of the features that its own model gives their samples.
    metrics : PrototypeMetrics
        Of its model.
    """

    class_ids: Tensor
    means: Tensor
    metrics: PrototypeMetrics


def prototype_reply(msg: Message, local: LocalPrototypes) -> Message:
    """Answer ``train.prototypes``."""
    return metrics_reply(msg, local.metrics, prototypes=to_record({"class-ids": local.class_ids, "means": local.means}))


@reads_replies
def read_prototype_reply(reply: Message, num_classes: int, feature_dim: int) -> LocalPrototypes:
    """Read a client's part of a round."""
    metrics = read_metrics(reply.content, PrototypeMetrics, "prototypes")
    arrays = record_of(reply.content, "prototypes", ArrayRecord, {"class-ids", "means"})
    ids = read_array(arrays, "class-ids", torch.int64, (range(num_classes + 1),))
    check_rows(ids, torch.ones_like(ids), num_classes, 1)
    means = read_array(arrays, "means", torch.float32, (len(ids), feature_dim))
    if len(ids) and float(means.abs().max()) > MAX_FEATURE:
        raise Malformed(f"means: must lie within {MAX_FEATURE:.0e}, got {float(means.abs().max()):.3g}")
    return LocalPrototypes(ids, means, metrics)


# Heads in closed form


@dataclass(frozen=True)
class PersonalHeadTask:
    """A request as a client reads it: which samples are for what, and what to solve.

    Nothing in ``training`` is trained. The statistics are the federation's, with a Gram matrix; the method is what its
    head was solved by, its regulariser fixed; the grid has the mixing weights to choose from.
    """

    training: TrainingTask
    statistics: FeatureStatistics
    method: ConfiguredMethod
    grid: tuple[float, ...]


def personal_heads_content(
    request: TrainingRequest,
    statistics: FeatureStatistics,
    method: ConfiguredMethod,
    grid: Sequence[float],
    *,
    wire_dtype: str,
) -> RecordDict:
    """Write the request; the statistics must have a Gram matrix, or there is a ValueError."""
    if statistics.gram is None:
        raise ValueError("personal heads need statistics with a Gram matrix, got gram=None")
    dtype = WIRE_DTYPES[wire_dtype]
    content = training_content(request, ArrayRecord(), ArrayRecord())
    content["statistics"] = to_record(
        {
            "class-counts": statistics.class_counts,
            "class-sums": statistics.class_sums.to(dtype),
            "gram": pack_upper(statistics.gram).to(dtype),
        }
    )
    content["solver"] = ConfigRecord(
        {"method": method.method.name, **method.options.to_config(), "grid": list(grid), "wire-dtype": wire_dtype}
    )
    return content


@reads_requests("for personal heads")
def read_personal_heads_task(msg: Message) -> PersonalHeadTask:
    """Read a message of type ``train.personal_heads``."""
    training = read_training_task(msg)
    solver = record_of(msg.content, "solver", ConfigRecord)
    method, grid = _read_method(solver), list_of(solver, "grid", float, MAX_GRID)
    wire_dtype = typed(solver, "wire-dtype", str)
    if wire_dtype not in WIRE_DTYPES:
        raise Malformed(f"wire-dtype: must be one of {', '.join(WIRE_DTYPES)}, got {wire_dtype!r:.40}")
    num_classes, dtype = training.request.num_classes, WIRE_DTYPES[wire_dtype]
    arrays = record_of(msg.content, "statistics", ArrayRecord, {"class-counts", "class-sums", "gram"})
    counts = read_array(arrays, "class-counts", torch.int64, (num_classes,))
    if int(counts.min()) < 0 or int(counts.max()) > 2**50:
        raise Malformed(f"class-counts: must lie in [0, 2^50], got {int(counts.min())} to {int(counts.max())}")
    sums = read_array(arrays, "class-sums", dtype, (num_classes, range(1, MAX_GRAM_DIM + 1)))
    dim = sums.shape[1]
    gram = unpack_upper(read_array(arrays, "gram", dtype, (dim * (dim + 1) // 2,)), dim)
    statistics = FeatureStatistics(counts, sums.to(torch.float64), gram.to(torch.float64))
    return PersonalHeadTask(training, statistics, method, tuple(grid))


def _read_method(solver: ConfigRecord) -> ConfiguredMethod:
    """Read the method, its options checked as those of a configuration are, and of exactly their types."""
    name = typed(solver, "method", str)
    if name not in PERSONAL_METHODS:
        raise Malformed(f"method: must be one of {', '.join(PERSONAL_METHODS)}, got {name!r:.60}")
    method = METHODS[name]
    check_keys("solver", solver, {"method", "grid", "wire-dtype", *method.options.keys()})
    configured = method.configured(method.options.read(solver))
    for key, value in configured.options.to_config().items():
        typed(solver, key, type(value))
    if problems := configured.options.problems():
        raise Malformed(", ".join(problems))
    configured.scaled(1.0)  # refuses a regulariser that is still to be chosen
    return configured


def head_scores_reply(msg: Message, num_test: int, num_correct: dict[str, int]) -> Message:
    """Answer ``evaluate.personal``: a client's test samples, and how many each head predicts right."""
    scores = {f"correct.{name}": number for name, number in num_correct.items()}
    return Message(RecordDict({"metrics": MetricRecord({"num-test": num_test, **scores})}), reply_to=msg)


@reads_replies
def read_head_scores_reply(reply: Message, methods: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Read a client's number of test samples, and how many of them the head of each method predicts right."""
    check_keys("reply", reply.content, {"metrics"})
    correct = {name: f"correct.{name}" for name in methods}
    record = record_of(reply.content, "metrics", MetricRecord, {"num-test", *correct.values()})
    num_test = whole(record, "num-test", 0, MAX_COUNT)
    return num_test, {name: whole(record, key, 0, num_test) for name, key in correct.items()}
