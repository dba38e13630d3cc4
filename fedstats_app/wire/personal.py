"""Personal models, which stay on their clients' nodes.

``train.personalise`` trains one, ``train.personal_heads`` solves one, and ``evaluate.personal`` scores the federation's
own heads on each client's samples.

A request to train is that of a training round (``config``, ``arrays``, ``fixed``), in which ``arrays`` is the head to
start from on the node's pre-trained backbone: ``head.weight`` and ``head.bias``, or nothing, for a head drawn by the
seed. A ConfigRecord ``personal`` lists the classes that must not be predicted, and an ArrayRecord ``prototypes``, if
there is one, holds the class means to hold features near.

Personal heads are solved from an ArrayRecord ``statistics`` (``class-counts`` (C,) int64, ``class-sums`` (C, D),
``gram`` (D (D + 1) / 2,), its upper triangle row by row) and a ConfigRecord ``solver``: a method and all its options by
their run-config keys, its regulariser as a number.

Every reply has a MetricRecord ``metrics``: how many of a client's own test samples are predicted right, and nothing by
class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.backbones.names import MAX_MAPPED_FEATURES
from fedstats_app.methods import METHODS, PERSONAL_METHODS, Method
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
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
    number,
    reads_replies,
    reads_requests,
    record_of,
    typed,
    whole,
)
from fedstats_app.wire.training import TrainingTask, read_training_task, training_content

PERSONALISE, PERSONAL_HEADS, EVALUATE_PERSONAL = "train.personalise", "train.personal_heads", "evaluate.personal"

# Above any real number of epochs times samples.
MAX_FORWARD_PASSES = 2**53
MAX_GRID = 1000


@dataclass(frozen=True)
class PersonalMetrics:
    """Scores and costs of a client's personal model.

    Attributes
    ----------
    num_examples : int
        Samples that it trained on.
    num_test : int
        Samples that it kept for testing; 0 if nothing was tested.
    num_correct : int
        Test samples that the personal model predicts right.
    forward_passes : int
        Compute, a backward pass counting as two.
    seconds : float
        Time it took.
    """

    num_examples: int = counted()
    num_test: int = counted()
    num_correct: int = counted("num_test")
    forward_passes: int = counted(MAX_FORWARD_PASSES)
    seconds: float = measured()


@dataclass(frozen=True)
class HeadMetrics(PersonalMetrics):
    """Scores and costs of a client's head in closed form.

    Attributes
    ----------
    mixing : float
        Weight of its own statistics, from 0 to 1.
    """

    mixing: float = measured(1.0)


# Replies to ``train.personalise`` and ``train.personal_heads``.
read_personal_reply = metrics_reader(PersonalMetrics)
read_personal_heads_reply = metrics_reader(HeadMetrics)


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Class means that a client holds its features near while it trains.

    Attributes
    ----------
    means : Tensor
        (C, D) float32; the row of a class without one is zero.
    present : Tensor
        (C,) bool, classes that have one.
    weight : float
        Of the term in the loss, at least 0.
    """

    means: Tensor
    present: Tensor
    weight: float


@dataclass(frozen=True)
class PersonalTask:
    """A request as a client reads it: how to train, and in ``training.trained`` the head to start from.

    ``predictable`` is (C,) bool, the classes that the model may predict when it is scored.
    """

    training: TrainingTask
    prototypes: Prototypes | None
    predictable: Tensor


def personal_content(
    request: TrainingRequest, start: Mapping[str, Tensor], prototypes: Prototypes | None, predictable: Tensor
) -> RecordDict:
    """Write a request to train a personal model, which :func:`read_personal_task` reads.

    ``start`` holds float32, finite tensors: ``head.weight`` and ``head.bias``, or none.
    """
    content = training_content(request, to_record(start), ArrayRecord())
    content["personal"] = ConfigRecord({"absent-classes": (~predictable).nonzero().squeeze(1).tolist()})
    if prototypes is not None:
        content["prototypes"] = to_record(
            {"means": prototypes.means.float(), "present": prototypes.present.to(torch.uint8)}
        )
        content["alignment"] = ConfigRecord({"weight": float(prototypes.weight)})
    return content


@reads_requests("to personalise")
def read_personal_task(msg: Message) -> PersonalTask:
    """Read a message with :func:`personal_content`."""
    content, training = msg.content, read_training_task(msg)
    num_classes = training.request.num_classes
    if training.trained and training.trained.keys() != {"head.weight", "head.bias"}:
        raise Malformed(f"arrays: must be head.weight and head.bias, or none, got {', '.join(training.trained):.60}")
    absent = list_of(record_of(content, "personal", ConfigRecord), "absent-classes", int)
    if not all(0 <= class_id < num_classes for class_id in absent):
        raise Malformed(f"absent-classes: must be class ids in [0, {num_classes}), got {absent!r:.60}")
    predictable = torch.ones(num_classes, dtype=torch.bool)
    predictable[torch.tensor(absent, dtype=torch.int64)] = False
    if "prototypes" not in content:
        return PersonalTask(training, None, predictable)
    arrays, alignment = record_of(content, "prototypes", ArrayRecord), record_of(content, "alignment", ConfigRecord)
    means = read_array(arrays, "means", torch.float32, (num_classes, range(1, MAX_FEATURE_DIM + 1)))
    present = read_array(arrays, "present", torch.uint8, (num_classes,)).to(torch.bool)
    prototypes = Prototypes(means, present, number(alignment, "weight"))
    return PersonalTask(training, prototypes, predictable)


# Heads in closed form


@dataclass(frozen=True)
class PersonalHeadTask:
    """A request as a client reads it: which samples are for what, and what to solve.

    Nothing in ``training`` is trained. The statistics are the federation's, with a Gram matrix; the method is what its
    head was solved by, its regulariser fixed; the grid has the mixing weights to choose from.
    """

    training: TrainingTask
    statistics: FeatureStatistics
    method: Method[Any]
    grid: tuple[float, ...]


def personal_heads_content(
    request: TrainingRequest,
    statistics: FeatureStatistics,
    method: Method[Any],
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
        {"method": method.name, **method.options.to_config(), "grid": list(grid), "wire-dtype": wire_dtype}
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
    sums = read_array(arrays, "class-sums", dtype, (num_classes, range(1, MAX_MAPPED_FEATURES + 1)))
    dim = sums.shape[1]
    gram = unpack_upper(read_array(arrays, "gram", dtype, (dim * (dim + 1) // 2,)), dim)
    statistics = FeatureStatistics(counts, sums.to(torch.float64), gram.to(torch.float64))
    return PersonalHeadTask(training, statistics, method, tuple(grid))


def _read_method(solver: ConfigRecord) -> Method[Any]:
    """Read the method, its options checked as those of a configuration are, and of exactly their types."""
    name = typed(solver, "method", str)
    if name not in PERSONAL_METHODS:
        raise Malformed(f"method: must be one of {', '.join(PERSONAL_METHODS)}, got {name!r:.60}")
    kind = METHODS[name]
    check_keys("solver", solver, {"method", "grid", "wire-dtype", *kind.options_type.keys()})
    configured = kind(kind.options_type.read(solver))
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
