"""Values of the right type that cannot be, in any message, are refused by name: the same on clients and server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import Array

from tests.wire.messages import KINDS
from tests.wire.replies import DIM, NUM_CLASSES


def specifications(**changes: object) -> str:
    good = {"gram": True, "means-per-class": 1, "feature-map": {"kind": "identity"}}
    return json.dumps([good | {key.replace("_", "-"): value for key, value in changes.items()}])


def feature_map(kind: str, **parameters: object) -> str:
    return specifications(feature_map={"kind": kind, **parameters})


RELU = {"num_features": 4, "seed": 0, "activation": "relu"}
C, D, TRIANGLE = NUM_CLASSES, DIM, DIM * (DIM + 1) // 2
# Kind, record and key, a value of the right type that cannot be, and why not.
IMPOSSIBLE: tuple[tuple[str, str, str, Any, str], ...] = (
    ("statistics", "request", "num-classes", 0, r"num_classes must lie in \[1, 1000000\], got 0"),
    ("statistics", "request", "num-classes", 10**12, "num_classes must lie in"),
    ("statistics", "request", "wire-dtype", "object", "wire_dtype must be one of"),
    ("statistics", "request", "seed", -1, r"seed must lie in \[0, 2\^63\)"),
    ("statistics", "request", "seed", 2**63, "seed must lie in"),
    ("statistics", "request", "class-names", ["a", "b"], "class_names must name all 5 classes, got 2"),
    ("statistics", "request", "holdout", 1.0, r"holdout must lie in \[0, 1\)"),
    ("statistics", "request", "specifications", "{", "JSONDecodeError"),
    ("statistics", "request", "specifications", '{"gram": true}', "must be a list of objects"),
    ("statistics", "request", "specifications", "[1, null]", "must be a list of objects"),
    ("statistics", "request", "specifications", "[" * 99_999, "RecursionError"),
    ("statistics", "request", "specifications", " " * 10**6, "take at most 100000 characters, got 1000000"),
    ("statistics", "request", "specifications", "[]", "takes 1 to 16 specifications, got 0"),
    ("statistics", "request", "specifications", f"[{', '.join(17 * [specifications()[1:-1]])}]", "1 to 16 .*, got 17"),
    ("statistics", "request", "specifications", specifications(gram="false"), "gram must be of type bool"),
    ("statistics", "request", "specifications", specifications(means_per_class=1.5), "must be of type int"),
    ("statistics", "request", "specifications", specifications(means_per_class=1e999), "must be of type int"),
    ("statistics", "request", "specifications", specifications(means_per_class=0), "must be at least 1"),
    ("statistics", "request", "specifications", specifications(means_per_class=10**9), "must be at most 10000"),
    ("statistics", "request", "specifications", specifications(feature_map="identity"), "must be of type dict"),
    ("statistics", "request", "specifications", specifications(feature_map={}), "feature map kind must be one of"),
    ("statistics", "request", "specifications", feature_map("exec"), "feature map kind must be one of"),
    *(
        ("statistics", "request", "specifications", feature_map("random-projection", **{**RELU, **changes}), reason)
        for changes, reason in (
            ({"num_features": 10**9}, "num_features"),
            ({"num_features": 50_000}, "at most 32768"),
            ({"activation": "exec"}, "activation"),
            ({"seed": -1}, "seed must lie"),
        )
    ),
    *(
        (
            "statistics",
            "request",
            "specifications",
            feature_map("random-fourier", num_features=4, kernel_width=width, seed=0),
            "kernel_width",
        )
        for width in (float("nan"), 0.0)
    ),
    *(
        ("statistics with a factor", "request", "specifications", specifications(scatter=scatter), reason)
        for scatter, reason in (
            (None, "scatter must be of type dict"),
            ({"rank": 2, "dtype": "float16"}, "rank must be of type str"),
            ({"rank": "half", "dtype": "float16"}, 'must be full, "sqrt'),
            ({"rank": "full", "dtype": "int2"}, "dtype of a factor must be one of .*, int4, got 'int2'"),
            ({"rank": "full"}, "KeyError"),
        )
    ),
    (
        "statistics with a factor",
        "request",
        "specifications",
        specifications(
            gram=False,
            scatter={"rank": "full", "dtype": "float16"},
            feature_map={"kind": "random-projection", **RELU, "num_features": 50_000},
        ),
        "at most 32768",
    ),
    ("heads", "head.x", "weight", np.full((C, D), np.nan), "weight: must be finite"),
    ("heads", "head.x", "weight", np.zeros(C), "weight: must have shape"),
    ("heads", "head.x", "weight", np.zeros((C + 1, D)), r"weight: must have shape \(5, .*, got \(6, 6\)"),
    ("heads", "head.x", "bias", np.zeros(C + 1), "bias: must have shape"),
    ("heads", "head.x", "bias", np.full(C, -np.inf), "a head must be finite"),
    ("heads", "head.x", "present", np.ones(C + 1, np.uint8), "present: must have shape"),
    ("heads", "head.x", "specification", np.array(2), "specification: must be below 1, got 2"),
    ("heads", "head.x", "specification", np.array(-1), "specification: must be below 1, got -1"),
    ("heads", "head.x", "specification", np.array([0, 1]), "specification: must have shape"),
    ("train", "config", "tune", "everything", "tune: must be one of full, probe, features"),
    ("train", "config", "batch-norm", "off", "batch-norm: must be one of"),
    ("train", "config", "temperature", 0.0, "temperature must be a positive number"),
    ("train", "config", "learning-rate", -1.0, "learning_rate must be positive"),
    ("train", "config", "local-epochs", 0, "epochs must be at least 1"),
    ("train", "config", "holdout", 1.0, r"holdout must lie in \[0, 1\)"),
    ("train", "config", "num-classes", 0, "num_classes must lie in"),
    ("train", "config", "class-names", ["ant"], "class_names must name all 5 classes"),
    ("train", "config", "feature-map", "{", "not a request to train: feature-map: JSONDecodeError"),
    ("train", "config", "feature-map", "[" * 99_999, "not a request to train: feature-map: RecursionError"),
    ("train", "config", "feature-map", " " * 10**6, "feature-map: .* at most 100000 characters"),
    ("train", "config", "seed", -1, "seed must lie in"),
    ("train", "config", "server-round", -1, "server-round: must be a whole number of at least 0"),
    ("train", "arrays", "head.bias", np.full(C, np.nan, np.float32), "head.bias: must be finite"),
    ("train reply", "metrics", "num-examples", 8, "num-examples: must be 7, got 8"),
    ("train reply", "metrics", "loss", -1.0, "loss: must be a finite float"),
    ("model reply", "metrics", "num-correct", 5, "num-correct: must be a whole number from 0 to 4, got 5"),
    ("personalise", "personal", "absent-classes", [C], "absent-classes: must be class ids in"),
    ("personalise", "personal", "absent-classes", [-1], "absent-classes: must be class ids in"),
    ("personalise", "alignment", "form", "cosine", "form must be one of"),
    ("personalise", "alignment", "weight", -1.0, "weight: must be a finite float of at least 0"),
    ("personalise", "prototypes", "means", np.full((C, D), np.nan, np.float32), "means: must be finite"),
    ("personalise", "prototypes", "means", np.zeros((C + 1, D), np.float32), "means: must have shape"),
    ("personalise", "prototypes", "means", np.zeros(C, np.float32), "means: must have shape"),
    ("personalise", "prototypes", "means", np.zeros((C, D)), "means: must be <f4"),
    ("personalise", "prototypes", "present", np.ones(C, np.int64), "present: must be"),
    ("personalise reply", "metrics", "correct-after", 26, "correct-after: must be a whole number from 0 to 25, got 26"),
    ("personalise reply", "metrics", "correct-before", 26, "correct-before: must be a whole number from 0 to 25"),
    ("personalise reply", "metrics", "correct-after", -1, "correct-after"),
    ("personalise reply", "metrics", "num-test", 10**8, "num-test"),
    ("personalise reply", "metrics", "num-examples", -1, "num-examples"),
    ("personalise reply", "metrics", "forward-passes", 2**60, "forward-passes"),
    ("personalise reply", "metrics", "seconds", -0.5, "seconds"),
    ("prototypes", "config", "server-round", 0, "server-round: must count from 1, got 0"),
    ("prototypes reply", "prototypes", "class-ids", np.array([0, C]), "class-ids: must lie in"),
    ("prototypes reply", "prototypes", "class-ids", np.array([3, 0]), "class-ids: must ascend"),
    ("prototypes reply", "prototypes", "class-ids", np.array([3, 3]), "class-ids: at most 1 rows per class"),
    ("prototypes reply", "prototypes", "class-ids", np.arange(9), "class-ids: must have shape"),
    ("prototypes reply", "prototypes", "class-ids", np.array([0]), "means: must have shape"),
    ("prototypes reply", "prototypes", "means", np.zeros((2, D + 1), np.float32), "means: must have shape"),
    ("prototypes reply", "prototypes", "means", np.zeros((2, D)), "means: must be <f4"),
    ("prototypes reply", "prototypes", "means", np.full((2, D), np.inf, np.float32), "means: must be finite"),
    ("prototypes reply", "prototypes", "means", np.full((2, D), 1e11, np.float32), "means: must lie within"),
    ("prototypes reply", "metrics", "restarted", 2, "restarted: must be a whole number from 0 to 1"),
    ("prototypes reply", "metrics", "num-test", -1, "num-test"),
    ("personal heads", "solver", "method", "lasso", "method: must be one of fedcgs, fed3r"),
    ("personal heads", "solver", "method", "fedncm", "method: must be one of"),
    ("personal heads", "solver", "ridge-lambda", -1.0, r"ridge-lambda: must be a number in \[0, inf\)"),
    ("personal heads", "solver", "ridge-lambda", "auto", "ridge_lambda must be a number for a personal head"),
    ("personal heads", "solver", "fed3r-solver", "magic", "fed3r-solver: must be one of"),
    ("personal heads", "solver", "weights", 1.0, r"unexpected \['weights'\]"),
    ("personal heads", "solver", "wire-dtype", "float16", "wire-dtype: must be one of"),
    ("personal heads", "solver", "grid", [0.0] * 1001, "grid: must be a list of at most"),
    ("personal heads", "statistics", "class-counts", np.full(C, -1), "class-counts: must lie in"),
    ("personal heads", "statistics", "class-counts", np.full(C, 2**60), "class-counts: must lie in"),
    ("personal heads", "statistics", "class-counts", np.ones(2, np.int64), "class-counts: must have shape"),
    ("personal heads", "statistics", "class-sums", np.ones((C, D), np.float32), "class-sums: must be <f8"),
    ("personal heads", "statistics", "class-sums", np.ones(C), r"class-sums: must have shape .*1\.\.32768"),
    ("personal heads", "statistics", "class-sums", np.ones((C, 7)), "gram: must have shape"),
    ("personal heads", "statistics", "gram", np.full(TRIANGLE, np.nan), "gram: must be finite"),
    ("personal heads reply", "metrics", "mixing", 1.5, "mixing: must be a finite float from 0 to 1"),
    ("personal heads reply", "metrics", "mixing", -0.1, "mixing: must be"),
    ("personal heads reply", "metrics", "num-test", 3, "correct-before: must be a whole number from 0 to 3"),
    ("scores reply", "metrics", "correct.x", 8, "correct.x: must be a whole number from 0 to 7"),
    ("scores reply", "metrics", "correct.x", -1, "correct.x: must be"),
    ("mezo", "m", "r", 0, "r: must be a whole number of at least 1, got 0"),
    ("mezo", "m", "u", b"123", "take 24 bytes each, got 3"),
    ("mezo", "m", "w", "everything", "w: must be one of"),
    ("mezo", "m", "u", np.array([1.0, np.inf, 1.0]).tobytes(), "steps must be finite"),
    ("mezo", "start", "head.bias", np.full(C, np.nan), "head.bias: must be finite"),
    ("behind", "m", "b", -2, "b: must be a whole number of at least -1"),
    ("mezo reply", "m", "g", bytes(16), "g: must be 8 bytes"),
    ("mezo reply", "m", "g", np.array([np.inf]).tobytes(), "g: must be finite"),
    ("mezo reply", "m", "n", -1, "n: must be a whole number from 0 to"),
    ("mezo reply", "m", "n", 2**50, "n: must be a whole number"),
    ("mezo reply", "m", "n", 0, "g: must be 0 bytes"),
    ("mezo reply", "m", "d", bytes(15), "d: must be 16 bytes"),
)


@pytest.mark.parametrize(("name", "record", "key", "value", "reason"), IMPOSSIBLE)
def test_a_value_that_cannot_be_is_refused(name: str, record: str, key: str, value: Any, reason: str) -> None:
    content = KINDS[name].make()
    content[record][key] = Array(value) if isinstance(value, np.ndarray) else value
    with pytest.raises(KINDS[name].refusal, match=reason) as refusal:
        KINDS[name].read(content)
    assert len(str(refusal.value)) < 400
