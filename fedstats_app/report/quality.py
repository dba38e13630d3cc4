"""How good the predictions of a head are, as results.json has it for every head, solved or trained."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedstats_app.heads import HeadScores
from fedstats_app.report.intervals import wilson_interval
from fedstats_app.report.method_result import MOST_CONFUSED

# What of it stands beside the accuracy, which a training has of every round.
QUALITY = (
    *("accuracy_interval", "macro_accuracy", "macro_f1", "macro_auroc", "macro_auroc_error"),
    *(f"per_class_{what}" for what in ("examples", "accuracy", "specificity", "f1", "auroc")),
    "most_confused",
)


def quality(scores: HeadScores | None) -> dict[str, Any]:
    """Return accuracy and its interval, and all measures by class and their means, under their names in results.json.

    Without samples there is an accuracy of None, and where sites told of no class by itself nothing by class.
    """
    if scores is None or not scores.confusion.num_examples:
        return dict.fromkeys(("accuracy", "macro_accuracy")) | {"per_class_accuracy": []}
    confusion, margins = scores.confusion, scores.margins
    return {
        "accuracy": confusion.accuracy,
        "accuracy_interval": wilson_interval(confusion.num_correct, confusion.num_examples),
        "macro_accuracy": _number(confusion.macro_accuracy),
        "macro_f1": _number(confusion.macro_f1),
        "macro_auroc": _number(margins.macro_auroc),
        "macro_auroc_error": _number(margins.macro_auroc_error),
        "per_class_examples": confusion.class_examples.tolist(),
        "per_class_accuracy": _numbers(confusion.per_class_accuracy),
        "per_class_specificity": _numbers(confusion.per_class_specificity),
        "per_class_f1": _numbers(confusion.per_class_f1),
        "per_class_auroc": _numbers(margins.per_class_auroc),
        "most_confused": confusion.confused_pairs()[:MOST_CONFUSED],
    }


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
