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
from fedstats_app.wire.arrays import WIRE_DTYPES, check_keys, read_array, to_array
from fedstats_app.wire.errors import RejectedReply, RejectedRequest
from fedstats_app.wire.personal import PersonalMetrics, number_metric, refuse_failure, whole_metric
from fedstats_app.wire.statistics_checks import MAX_COUNT
from fedstats_app.wire.statistics_request import MAX_GRAM_DIM
from fedstats_app.wire.training import TrainingRequest, TrainingTask, read_training_task

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
    solver = {"method": method.name, **method.options.to_config(), "grid": list(grid), "wire-dtype": wire_dtype}
    return RecordDict(
        {
            "config": ConfigRecord({**request.to_config(), "server-round": 1}),
            "arrays": ArrayRecord(),
            "fixed": ArrayRecord(),
            "statistics": ArrayRecord(arrays),
            "solver": ConfigRecord(solver),
        }
    )


def read_personal_heads_task(msg: Message) -> PersonalHeadTask:
    """Return what a message of type ``train.personal_heads`` asks for.

    Raises
    ------
    RejectedRequest
        If a record is missing or a value is not allowed.
    """
    training = read_training_task(msg)
    try:
        record, arrays = msg.content["solver"], msg.content["statistics"]
        if not isinstance(record, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            raise TypeError("solver must be a ConfigRecord and statistics an ArrayRecord")
        grid, method = _read_grid(record["grid"]), _read_method(record)
        dtype = WIRE_DTYPES[str(record["wire-dtype"])]
        statistics = _read_statistics(arrays, training.request.num_classes, dtype)
        return PersonalHeadTask(training, statistics, method, grid)
    except (KeyError, TypeError, ValueError, RejectedReply) as error:
        raise RejectedRequest(f"not a request for personal heads: {type(error).__name__}: {error!s:.200}") from error


def _read_method(record: ConfigRecord) -> ConfiguredMethod:
    """Return the method, its options checked as those of a configuration are."""
    if record["method"] not in PERSONAL_METHODS:
        raise ValueError(f"method must be one of {', '.join(PERSONAL_METHODS)}, got {record['method']!r:.60}")
    method = METHODS[str(record["method"])]
    check_keys("solver", record, {"method", "grid", "wire-dtype", *method.options.keys()})
    configured = method.configured(method.options.read(record))
    if problems := configured.options.problems():
        raise ValueError(", ".join(problems))
    configured.scaled(1.0)  # refuses a regulariser that is still to be chosen
    return configured


def _read_grid(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) > MAX_GRID:
        raise ValueError(f"grid must be at most {MAX_GRID} numbers, got {values!r:.60}")
    return tuple(float(value) for value in values)


def _read_statistics(arrays: ArrayRecord, num_classes: int, dtype: torch.dtype) -> FeatureStatistics:
    check_keys("statistics", arrays, {"class-counts", "class-sums", "gram"})
    claimed = arrays["class-sums"].shape
    dim = int(claimed[1]) if len(claimed) == 2 else 0
    if not 1 <= dim <= MAX_GRAM_DIM:
        raise ValueError(f"class-sums: feature dimension must lie in [1, {MAX_GRAM_DIM}], got {dim}")
    counts = read_array(arrays, "class-counts", torch.int64, (num_classes,))
    if int(counts.min()) < 0 or int(counts.max()) > 2**50:
        raise ValueError(f"class-counts must lie in [0, 2^50], got {int(counts.min())} to {int(counts.max())}")
    sums = read_array(arrays, "class-sums", dtype, (num_classes, dim))
    gram = unpack_upper(read_array(arrays, "gram", dtype, (dim * (dim + 1) // 2,)), dim)
    return FeatureStatistics(counts, sums.to(torch.float64), gram.to(torch.float64))


def personal_heads_reply(msg: Message, metrics: PersonalMetrics, mixing: float) -> Message:
    """Return the reply to ``train.personal_heads``; "before" is the federation's head."""
    return Message(RecordDict({"metrics": metrics.to_record(mixing=float(mixing))}), reply_to=msg)


def read_personal_heads_reply(reply: Message) -> tuple[PersonalMetrics, float]:
    """Return what a client says of its head, and the weight of its own statistics in it.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    refuse_failure(reply)
    check_keys("reply", reply.content, {"metrics"})
    metrics = PersonalMetrics.read(reply.content["metrics"], frozenset({"mixing"}))
    return metrics, number_metric(reply.content.metric_records["metrics"], "mixing", 1.0)


def head_scores_reply(msg: Message, num_test: int, num_correct: dict[str, int]) -> Message:
    """Return the reply to ``evaluate.personal``: a client's test samples, and how many each head predicts right."""
    scores = {f"correct.{name}": number for name, number in num_correct.items()}
    return Message(RecordDict({"metrics": MetricRecord({"num-test": num_test, **scores})}), reply_to=msg)


def read_head_scores_reply(reply: Message, methods: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return a client's number of test samples, and how many of them the head of each method predicts right.

    Raises
    ------
    RejectedReply
        If it failed, or says something that cannot be.
    """
    refuse_failure(reply)
    check_keys("reply", reply.content, {"metrics"})
    record = reply.content["metrics"]
    if not isinstance(record, MetricRecord):
        raise RejectedReply(f"metrics: must be a MetricRecord, got {type(record).__name__}")
    check_keys("metrics", record, {"num-test", *(f"correct.{name}" for name in methods)})
    num_test = whole_metric(record, "num-test", MAX_COUNT)
    return num_test, {name: whole_metric(record, f"correct.{name}", num_test) for name in methods}
