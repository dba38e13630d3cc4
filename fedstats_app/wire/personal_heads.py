"""Closed-form personal heads, ``train.personal_heads``: the federation's statistics down, accuracies up.

The request has the ConfigRecord ``config`` of a training round (whose ``feature-map`` is that of the statistics), an
ArrayRecord ``statistics`` (``class-counts`` (C,) int64, ``class-sums`` (C, D), ``gram`` (D (D + 1) / 2,), its upper
triangle row by row) and a ConfigRecord ``solver``: a method and all its options by their run-config keys, its
regulariser as a number. The head that a client solves stays with it. ``evaluate.personal`` asks how the federation's
own heads do on each client's samples, by numbers of right answers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstats_app.methods import METHODS, PERSONAL_METHODS, ConfiguredMethod
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.arrays import WIRE_DTYPES, read_array, to_array
from fedstats_app.wire.personal import PersonalMetrics
from fedstats_app.wire.reading import (
    MAX_COUNT,
    Malformed,
    check_keys,
    list_of,
    number,
    reads_replies,
    reads_requests,
    record_of,
    typed,
    whole,
)
from fedstats_app.wire.statistics_request import MAX_GRAM_DIM
from fedstats_app.wire.training import TrainingTask, read_training_task, training_content

PERSONAL_HEADS = "train.personal_heads"
EVALUATE_PERSONAL = "evaluate.personal"

MAX_GRID = 1000


@dataclass(frozen=True)
class PersonalHeadTask:
    """A request as a client reads it.

    Attributes
    ----------
    training : TrainingTask
        Which samples are for what; nothing in it is trained.
    statistics : FeatureStatistics
        Of the federation, with a Gram matrix.
    method : ConfiguredMethod
        As the federation's head was solved, its regulariser fixed.
    grid : tuple of float
        Mixing weights to choose from.
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
    """Return the content of the request.

    Raises
    ------
    ValueError
        If the statistics have no Gram matrix.
    """
    if statistics.gram is None:
        raise ValueError("personal heads need statistics with a Gram matrix, got gram=None")
    dtype = WIRE_DTYPES[wire_dtype]
    arrays = {
        "class-counts": to_array(statistics.class_counts),
        "class-sums": to_array(statistics.class_sums.to(dtype)),
        "gram": to_array(pack_upper(statistics.gram).to(dtype)),
    }
    solver = {"method": method.method.name, **method.options.to_config(), "grid": list(grid), "wire-dtype": wire_dtype}
    content = training_content(request, ArrayRecord(), ArrayRecord())
    return RecordDict({**content, "statistics": ArrayRecord(arrays), "solver": ConfigRecord(solver)})


@reads_requests("for personal heads")
def read_personal_heads_task(msg: Message) -> PersonalHeadTask:
    """Return what a message of type ``train.personal_heads`` asks for.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    training = read_training_task(msg)
    record = record_of(msg.content, "solver", ConfigRecord)
    method, grid = _read_method(record), list_of(record, "grid", float, MAX_GRID)
    wire_dtype = typed(record, "wire-dtype", str)
    if wire_dtype not in WIRE_DTYPES:
        raise Malformed(f"wire-dtype: must be one of {', '.join(WIRE_DTYPES)}, got {wire_dtype!r:.40}")
    statistics = _read_statistics(msg.content, training.request.num_classes, WIRE_DTYPES[wire_dtype])
    return PersonalHeadTask(training, statistics, method, tuple(grid))


def _read_method(record: ConfigRecord) -> ConfiguredMethod:
    """Return the method, its options checked as those of a configuration are, and of exactly their types."""
    name = typed(record, "method", str)
    if name not in PERSONAL_METHODS:
        raise Malformed(f"method: must be one of {', '.join(PERSONAL_METHODS)}, got {name!r:.60}")
    method = METHODS[name]
    check_keys("solver", record, {"method", "grid", "wire-dtype", *method.options.keys()})
    configured = method.configured(method.options.read(record))
    for key, value in configured.options.to_config().items():
        typed(record, key, type(value))
    if problems := configured.options.problems():
        raise Malformed(", ".join(problems))
    configured.scaled(1.0)  # refuses a regulariser that is still to be chosen
    return configured


def _read_statistics(content: RecordDict, num_classes: int, dtype: torch.dtype) -> FeatureStatistics:
    arrays = record_of(content, "statistics", ArrayRecord, {"class-counts", "class-sums", "gram"})
    counts = read_array(arrays, "class-counts", torch.int64, (num_classes,))
    if int(counts.min()) < 0 or int(counts.max()) > 2**50:
        raise Malformed(f"class-counts: must lie in [0, 2^50], got {int(counts.min())} to {int(counts.max())}")
    sums = read_array(arrays, "class-sums", dtype, (num_classes, range(1, MAX_GRAM_DIM + 1)))
    dim = sums.shape[1]
    gram = unpack_upper(read_array(arrays, "gram", dtype, (dim * (dim + 1) // 2,)), dim)
    return FeatureStatistics(counts, sums.to(torch.float64), gram.to(torch.float64))


def personal_heads_reply(msg: Message, metrics: PersonalMetrics, mixing: float) -> Message:
    """Return the reply to ``train.personal_heads``; "before" is the federation's head."""
    return Message(RecordDict({"metrics": metrics.to_record(mixing=float(mixing))}), reply_to=msg)


@reads_replies
def read_personal_heads_reply(reply: Message) -> tuple[PersonalMetrics, float]:
    """Return what a client says of its head, and the weight of its own statistics in it.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    check_keys("reply", reply.content, {"metrics"})
    metrics = PersonalMetrics.read(reply.content, "mixing")
    return metrics, number(reply.content.metric_records["metrics"], "mixing", 1.0)


def head_scores_reply(msg: Message, num_test: int, num_correct: dict[str, int]) -> Message:
    """Return the reply to ``evaluate.personal``: a client's test samples, and how many each head predicts right."""
    scores = {f"correct.{name}": number for name, number in num_correct.items()}
    return Message(RecordDict({"metrics": MetricRecord({"num-test": num_test, **scores})}), reply_to=msg)


@reads_replies
def read_head_scores_reply(reply: Message, methods: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return a client's number of test samples, and how many of them the head of each method predicts right.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    check_keys("reply", reply.content, {"metrics"})
    correct = {name: f"correct.{name}" for name in methods}
    record = record_of(reply.content, "metrics", MetricRecord, {"num-test", *correct.values()})
    num_test = whole(record, "num-test", 0, MAX_COUNT)
    return num_test, {name: whole(record, key, 0, num_test) for name, key in correct.items()}
