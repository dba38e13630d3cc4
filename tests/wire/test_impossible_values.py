"""Values of the right type that cannot be, in any message, are refused by name: the same on clients and server."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fedstats_app.grid.collection import Collection
from fedstats_app.heads import solve_ridge
from tests.support.compare import same_bits
from tests.wire.messages import DIM, FEW, KINDS, NUM_CLASSES, NUM_SAMPLES, STATISTICS_REPLIES, honest_reply


def specification(**changes: object) -> str:
    good = {"gram": True, "means-per-class": 1}
    return json.dumps(good | {key.replace("_", "-"): value for key, value in changes.items()})


def changed(index: int | tuple[int, int], value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Set one entry of an array."""

    def change(good: np.ndarray) -> np.ndarray:
        made = good.copy()
        made[index if isinstance(index, tuple) or made.ndim == 1 else np.unravel_index(index, made.shape)] = value
        return made

    return change


def cells(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(rows, np.int64)


C, D = NUM_CLASSES, DIM
IN_FEW_BITS: tuple[tuple[str, Any, str], ...] = (
    ("class-sum-scales", np.negative, "class-sum-scales: must be at least 0"),
    ("class-sum-scales", lambda good: good[:-1], "class-sum-scales: must have shape"),
    ("within-scales", np.negative, "within-scales: must be at least 0"),
    ("within-scales", lambda good: good[:-1], "within-scales: must have shape"),
    ("within-scales", lambda good: good * np.float32(1e30), "scatter: must have a trace in"),
    ("class-sums", np.zeros_like, "sum of exactly zero"),
)
# By kind and record: key, a value of the right type that cannot be (or how it is made of the good one), and why not.
IMPOSSIBLE: dict[tuple[str, str], tuple[tuple[str, Any, str], ...]] = {
    ("statistics", "request"): (
        ("num-classes", 0, r"num_classes must lie in \[1, 1000000\], got 0"),
        ("wire-dtype", "object", "wire_dtype must be one of"),
        ("seed", -1, r"seed must lie in \[0, 2\^63\)"),
        ("seed", 2**63, "seed must lie in"),
        ("class-names", ["a", "b"], "class_names must name all 5 classes, got 2"),
        ("holdout", 1.0, r"holdout must lie in \[0, 1\)"),
        ("specification", "{", "JSONDecodeError"),
        ("specification", "[]", "must be an object"),
        ("specification", "[" * 99_999, "RecursionError"),
        ("specification", " " * 10**6, "take at most 100000 characters, got 1000000"),
        ("specification", specification(gram="false"), "gram must be of type bool"),
        ("specification", specification(means_per_class=1.5), "must be of type int"),
        ("specification", specification(means_per_class=1e999), "must be of type int"),
        ("specification", specification(means_per_class=0), "must be at least 1"),
        ("specification", specification(means_per_class=10**9), "must be at most 10000"),
    ),
    ("statistics with a factor", "request"): (
        *(
            ("specification", specification(scatter=scatter), reason)
            for scatter, reason in (
                (None, "scatter must be of type dict"),
                ({"rank": 2, "dtype": "float16"}, "rank must be of type str"),
                ({"rank": "half", "dtype": "float16"}, 'must be full, "sqrt'),
                ({"rank": "full", "dtype": "int2"}, "dtype of a factor must be one of .*, int8, got 'int2'"),
                ({"rank": "full"}, "KeyError"),
            )
        ),
    ),
    ("heads", "head.x"): (
        ("weight", np.zeros(C), "weight: must have shape"),
        ("weight", np.zeros((C + 1, D)), r"weight: must have shape \(5, .*, got \(6, 6\)"),
        ("bias", np.zeros(C + 1), "bias: must have shape"),
        ("bias", np.full(C, -np.inf), "a head must be finite"),
        ("present", np.ones(C + 1, np.uint8), "present: must have shape"),
    ),
    ("train", "config"): (
        ("tune", "everything", "tune: must be one of full, probe, features"),
        ("temperature", 0.0, "temperature must be a positive number"),
        ("learning-rate", -1.0, "learning_rate must be positive"),
        ("local-epochs", 0, "epochs must be at least 1"),
        ("holdout", 1.0, r"holdout must lie in \[0, 1\)"),
        ("num-classes", 0, "num_classes must lie in"),
        ("class-names", ["ant"], "class_names must name all 5 classes"),
        ("seed", -1, "seed must lie in"),
        ("server-round", -1, "server-round: must be a whole number of at least 0"),
    ),
    ("train reply", "metrics"): (
        ("num-examples", 8, "num-examples: must be 7, got 8"),
        ("loss", -1.0, "loss: must be a finite float"),
    ),
    ("model reply", "metrics"): (("num-correct", 5, "num-correct: must be a whole number from 0 to 4, got 5"),),
    ("mezo", "m"): (
        ("r", 0, "r: must be a whole number of at least 1, got 0"),
        ("u", b"123", "take 24 bytes each, got 3"),
        ("w", "everything", "w: must be one of curvature, sync, got"),
        ("u", np.array([1.0, np.inf, 1.0]).tobytes(), "steps must be finite"),
    ),
    ("mezo reply", "m"): (
        ("g", bytes(16), "g: must be 8 bytes"),
        ("g", np.array([np.inf]).tobytes(), "g: must be finite"),
        ("n", -1, "n: must be a whole number from 0 to"),
        ("n", 0, "g: must be 0 bytes"),
        ("d", bytes(15), "d: must be 16 bytes"),
    ),
    ("partition", "node"): (
        ("partition-id", -1, "partition-id: must be .* at least 0, got -1"),
        ("partition-id", 3, "partition-id: must be .* from 0 to 2, got 3"),
        ("num-partitions", 0, "num-partitions: must be .* at least 1, got 0"),
        ("threads", -1, "threads: must be .* at least 0, got -1"),
        ("class-names", ["a"], r"unexpected \['class-names'\]"),
        ("x" * 10_000 + "", 0, "x{40}'"),
    ),
    ("classes", "node"): (
        ("threads", 1, r"unexpected \['threads'\]"),
        ("class-names", ["cat", "cat"], "must differ"),
        ("class-names", ["a", ""], "must have 1 to 200 printable"),
        ("class-names", ["a\nb"], "printable"),
        ("class-names", [str(one) for one in range(100_001)], "a list of at most 100000 values"),
        ("class-names", ["a"], "class-ids: must be 1 ascending whole numbers"),
        ("class-ids", [-1, 0], "must be 2 ascending"),
        ("class-ids", [2, 1], "must be 2 ascending"),
        ("class-ids", [0, 2**63], "must be 2 ascending"),
    ),
    ("statistics reply", "statistics"): (
        ("class-ids", changed(-1, C), r"class-ids: must lie in \[0, 5\), got 0 to 5"),
        ("class-ids", changed(0, -1), "class-ids: must lie in .* got -1"),
        ("class-ids", changed(1, 0), "class-ids: at most 1 rows per class, got 2"),
        ("class-ids", lambda good: good[::-1].copy(), "class-ids: must ascend"),
        ("class-ids", np.arange(99), "class-ids: must have shape"),
        ("counts", changed(0, -1), r"counts: must lie in \[1, 10000000\], got -1"),
        ("counts", changed(0, 0), "counts: must lie in .* got 0"),
        ("counts", changed(0, 10_000_001), "counts: must lie in .* to 10000001"),
        ("counts", lambda good: np.full_like(good, 2**62), "counts: must lie in"),
        ("counts", changed(0, 9), "must sum to num-examples 30, got"),
        ("counts", lambda good: good[1:], "counts: must have shape"),
        ("counts", np.array(30), "counts: must have shape"),
        ("class-sums", lambda good: good[:, :4].copy(), "class-sums: .*(shape|dimension)|within: must have shape"),
        ("class-sums", lambda good: good[:, :0], "class-sums: must have shape"),
        ("class-sums", lambda good: np.vstack([good, good[:1]]), "class-sums: must have shape"),
        ("class-sums", np.ravel, "class-sums: must have shape"),
        (
            "class-sums",
            lambda good: np.where(np.arange(len(good))[:, None] == 1, 0, good),
            "class-sums: class 1 has .* samples but a sum of exactly zero",
        ),
        ("class-sums", lambda good: good * np.float32(1e30), r"means must lie within 1e\+10"),
        ("within", lambda good: good[:-1], "within: must have shape"),
        ("within", np.negative, "scatter: must have a trace in"),
        ("within", changed(1, 1e6), "scatter: must be positive semi-definite"),
        ("within", changed(0, -0.5), "scatter: must be positive semi-definite"),
        ("within", lambda good: good * np.float32(1e30), "scatter: must have a trace in"),
    ),
    ("statistics reply of few samples", "statistics"): (
        ("within-factor", lambda good: good[:-1], "within-factor: a factor for 6 features has no"),
        ("within-factor", lambda good: np.resize(good, 11), "within-factor: must have shape"),
        ("within-factor", np.negative, "within-factor: the diagonal of a factor must not be neg"),
        ("within-factor", lambda good: good * np.float32(1e30), "scatter: must have a trace in"),
        ("within", np.zeros(21, np.float32), r"missing \[\], unexpected \['within'\]"),
    ),
    ("statistics reply of exact sums", "statistics"): (
        ("gram", lambda good: good / 2, "scatter: must"),
        ("gram", lambda good: good + 2.0**-20, r"gram: must be multiples of 2\^-16 \(exact-sums\)"),
        ("class-sums", lambda good: good + 2.0**-20, r"class-sums: must be multiples of 2\^-8 \(exact-sums\)"),
    ),
    ("statistics reply in half precision", "statistics"): IN_FEW_BITS,
    ("statistics reply in int8", "statistics"): IN_FEW_BITS,
    ("statistics reply with a factor in int8", "statistics"): (
        ("scatter-directions", np.zeros_like, "scatter-directions: none may be zero"),
        ("scatter-directions", lambda good: good[[0, 0]], "scatter-directions: must be orthonormal"),
        ("scatter-directions", lambda good: good[:, :-1].copy(), "scatter-directions: must have shape"),
    ),
    ("statistics reply with a factor", "statistics"): (
        ("scatter-values", np.negative, "scatter-values: must be at least 0 and not rise"),
        ("scatter-values", lambda good: good[::-1].copy(), "scatter-values: must be at least 0 and not rise"),
        ("scatter-values", lambda good: good * np.float32(1e20), "scatter-values: must have an energy of at"),
        ("scatter-values", np.ones(D + 1, np.float32), "scatter-values: must have shape"),
        ("scatter-directions", lambda good: good[:1], "scatter-directions: must have shape"),
        ("scatter-directions", lambda good: good[:, :5].copy(), "scatter-directions: must have shape"),
        ("scatter-directions", lambda good: good * np.float16(1.02), "scatter-directions: must be orthonormal"),
        ("scatter-directions", lambda good: good[[0, 0]], "scatter-directions: must be orthonormal"),
        ("scatter-directions", np.zeros_like, "scatter-directions: must be orthonormal within 0.0039, got 1"),
        ("scatter-left-out", np.array(-1e-3), r"scatter-left-out: must lie in \[0, .*, got -0.001"),
        ("scatter-left-out", lambda good: good * 100, r"scatter-left-out: must lie in \[0"),
        ("scatter-left-out", np.array(1e300), "scatter-left-out: must lie in"),
        ("gram", np.zeros(21, np.float32), r"missing \[\], unexpected \['gram'\]"),
    ),
    ("statistics reply", "metrics"): (
        ("num-examples", 29, "must sum to num-examples 29, got 30"),
        ("num-examples", -30, "num-examples: must be a whole number of at least 0, got -30"),
        ("num-unreadable", -1, "num-unreadable: must be"),
        ("num-suppressed-classes", -1, "num-suppressed-classes: must be"),
        ("num-suppressed-classes", 0.5, "num-suppressed-classes: must be a whole number"),
    ),
    ("statistics reply", "about"): (
        ("backbone-fingerprint", "5f" * 10_000, "backbone-fingerprint: must be at most 128 characters"),
        ("engine", "abacus" * 100, "engine: must be one of auto, torch, openvino, openvino-bf16, got 'abacus"),
    ),
    ("heads reply", "confusion.x"): (
        ("cells", cells((0, C, 1)), r"classes must lie in \[0, 5\)"),
        ("cells", cells((0, 0, 2**62)), "counts must lie in"),
        ("cells", cells((0, 0, 1), (0, 0, 1)), "one cell twice"),
        ("cells", cells(*[(0, 0, 1)] * (C * C + 1)), "cells: must have shape"),
        ("elsewhere", np.array([[C, 1]]), r"elsewhere: classes must differ and lie in \[0, 5\)"),
        ("elsewhere", np.array([[0, 1], [0, 2]]), "elsewhere: classes must differ"),
        ("elsewhere", np.array([[0, 0]]), r"elsewhere: counts must lie in \[1, 10000000\]"),
        ("elsewhere", np.zeros((0, 2), np.int64), "elsewhere: must have shape"),
        ("elsewhere", np.array([[0, 1]]), "bins: must hold every sample of the confusion matrix"),
        *(
            ("pooled", np.array(pooled), "pooled: must be 0 <= correct <= examples")
            for pooled in ([5, 7], [-1, -1], [7, -1], [10_000_001, 0])
        ),
    ),
    ("heads reply", "temperature.x"): (
        ("index", np.array([97]), "index: must be of one of 97 temperatures"),
        ("index", np.array([-1]), "index: must be of one of 97 temperatures"),
        ("index", np.array([1, 2]), "index: must have shape"),
    ),
    ("heads reply", "margins.x"): (
        ("bins", changed((0, 0), C), r"bins: classes must lie in \[0, 5\) and bins in \[0, 1281\)"),
        ("bins", changed((0, 1), 1281), "bins: classes must lie in"),
        ("bins", changed((0, 2), -1), "bins: counts must be at least 0, got -1"),
        ("bins", changed((0, 3), 1000), "bins: must hold every sample of the confusion matrix once for each class"),
        ("bins", changed((0, 2), 1000), "bins: must hold every sample"),
        ("bins", lambda good: good[1:], "bins: must hold every sample"),
        ("bins", lambda good: np.concatenate([good, good[:1]]), "bins: must differ in class or bin"),
        ("bins", lambda good: good[:, :3], "bins: must have shape"),
        ("bins", np.zeros((C * 1281 + 1, 4), np.int32), "bins: must have shape"),
    ),
    ("train reply", "arrays"): (("head.bias", np.zeros(C + 1, np.float32), "head.bias: must have shape"),),
    ("losses reply", "metrics"): (("num-examples", 6, "num-examples: must be 7, got 6"),),
    ("losses reply", "losses"): (
        ("by-temperature", np.full(32, 0.5), "by-temperature: must have shape"),
        ("by-temperature", changed(-1, -1e-9), "by-temperature: must lie in"),
        ("by-temperature", changed(-1, 1.1e30), "by-temperature: must lie in"),
    ),
}


def forge(content: RecordDict, record: str, key: str, value: Any) -> None:
    """Put a value in the place of another, or what a function makes of that."""
    made: Any = value(content[record][key].numpy()) if callable(value) else value  # type: ignore[index,call-overload,union-attr]
    arrays = isinstance(content[record], ArrayRecord)
    content[record][key] = Array(np.asarray(made)) if arrays else made  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("name", "record", "key", "value", "reason"), [(*where, *row) for where, rows in IMPOSSIBLE.items() for row in rows]
)
def test_a_value_that_cannot_be_is_refused(name: str, record: str, key: str, value: Any, reason: str) -> None:
    content = KINDS[name].good()
    forge(content, record, key, value)
    with pytest.raises(KINDS[name].refusal, match=reason) as refusal:
        KINDS[name].read(content)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("feature_dim", [DIM, None], ids=["known dimension", "unknown dimension"])
@pytest.mark.parametrize("name", STATISTICS_REPLIES)
def test_the_sums_are_those_of_the_honest_clients(name: str, feature_dim: int | None) -> None:
    request = STATISTICS_REPLIES[name]
    keep_rows, n = [request.spec.sends_scatter], FEW if "few" in name else NUM_SAMPLES
    honest, attacked = (Collection(request, keep_rows, feature_dim) for _ in range(2))
    before, after = honest_reply(request, seed=0, node=1), honest_reply(request, seed=2, node=3)
    honest.fold(before)
    honest.fold(after)

    attacked.fold(before)
    rows = [(record, *row) for (other, record), rows in IMPOSSIBLE.items() if other == name for row in rows]
    for record, key, value, _ in rows:
        reply = honest_reply(request, seed=1, node=2, n=n)
        forge(reply.content, record, key, value)
        outcome, received = attacked.fold(reply)
        assert (outcome.client, outcome.outcome, received) == (2, "rejected", None), (record, key)
    attacked.fold(after)

    assert attacked.num_merged == 2 and attacked.total_wire_bytes == honest.total_wire_bytes
    if request.spec.gram:
        heads = [solve_ridge(collection.total.summed()) for collection in (attacked, honest)]
        assert same_bits(heads[0].weight, heads[1].weight)
    else:
        sums = [collection.total.low_rank() for collection in (attacked, honest)]
        assert same_bits(sums[0].scatter, sums[1].scatter) and sums[0].left_out == sums[1].left_out
