"""Results of one method: quality of its predictions, by class and by client, and costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

from fedstats_app.heads import Calibration, HeadScores


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share (Wilson 1927), such as an accuracy.

    It covers the share of all samples like these, drawn independently, with about this probability, also where the
    share is near 0 or 1 or the samples are few, where the normal approximation around ``correct / total`` does not.
    It lies within [0, 1], around ``correct / total``; it is (0, 1) without samples, which say nothing.

    Raises
    ------
    ValueError
        If not ``0 <= correct <= total``.
    """
    if not 0 <= correct <= total:
        raise ValueError(f"correct and total must be 0 <= correct <= total, got {correct} and {total}")
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1.0 + 0.95) / 2.0)
    share, weight = correct / total, z * z / total
    centre = (share + weight / 2.0) / (1.0 + weight)
    half = z * math.sqrt(share * (1.0 - share) / total + weight / (4.0 * total)) / (1.0 + weight)
    # At the ends the formula gives the share itself, up to rounding.
    return (0.0 if correct == 0 else centre - half), (1.0 if correct == total else centre + half)


def client_spread(by_client: Mapping[int, float]) -> dict[str, Any] | None:
    """Sum up the accuracies of one head on what each client kept for evaluation; None without any.

    Returns
    -------
    dict or None
        `mean`, `minimum` and `maximum` over clients, 0 to 1, every client counting once; `std`, with n - 1, None with
        one client; `by_client`, from the client as a string to its accuracy.
    """
    if not by_client:
        return None
    values = {str(client): by_client[client] for client in sorted(by_client)}
    return {
        "mean": statistics.fmean(values.values()),
        "minimum": min(values.values()),
        "maximum": max(values.values()),
        "std": statistics.stdev(values.values()) if len(values) > 1 else None,
        "by_client": values,
    }


MOST_CONFUSED = 20  # pairs of classes that a result names


@dataclass(frozen=True)
class MethodResult:
    """One method's entry in results.json and one row of the table; docs/run-folder.md explains the metrics.

    Shares are 0 to 1, lists by class have one entry per class, and None stands where there is nothing to measure.

    Attributes
    ----------
    method : str
        Name in the configuration, in lower case.
    quality : mapping
        Accuracy and other measures (:func:`quality`).
    num_examples, num_clients : int
        Training samples behind the head; K, clients whose statistics were merged.
    uplink_bytes, wire_bytes : int
        Bytes from all clients by the papers' formulas, and as sent.
    solve_seconds : float
        Time to solve for the head on the server.
    regulariser : str
        What regularised the solve, in words, such as `lambda 310 (auto)`.
    ridge_effective : float or None
        The number that was in effect added to the diagonal of the scatter matrix.
    condition_number : float or None
        Of the system solved.
    calibration : Calibration or None
        The temperature that makes probabilities of the head's scores.
    notes : list of str
        Anything the reader should know about this method's run.
    parameters : dict
        The solver's numbers by name, as :class:`fedstats_app.heads.SolveReport` has them.
    client_accuracy : dict or None
        How the accuracy differs between clients (:func:`client_spread`); None if the server evaluated.
    probe_step : float or None
        From which the learning rate of a probe follows (:func:`fedstats_app.training.start.probe_step`), of the
        features that the head takes.
    targets : dict or None
        Measures of several labels or numbers a sample (:meth:`fedstats_app.heads.target_scores.TargetScores.measures`).
    """

    method: str
    quality: Mapping[str, Any]
    num_examples: int
    num_clients: int
    uplink_bytes: int
    wire_bytes: int
    solve_seconds: float
    regulariser: str
    ridge_effective: float | None = None
    condition_number: float | None = None
    calibration: Calibration | None = None
    notes: list[str] = field(default_factory=list)
    parameters: dict[str, float] = field(default_factory=dict)
    client_accuracy: dict[str, Any] | None = None
    probe_step: float | None = None
    targets: dict[str, Any] | None = None

    @property
    def accuracy(self) -> float | None:
        """Share of test samples that are classified correctly, 0 to 1; None without any."""
        accuracy: float | None = self.quality["accuracy"]
        return accuracy

    def to_json(self) -> dict[str, object]:
        """Give the entry for results.json, without the method's name, which is its key there."""
        own = {name: value for name, value in asdict(self).items() if name not in ("method", "quality")}
        return {**self.quality, **own}


# Measures of a head, as they are without samples.
UNSCORED: Mapping[str, Any] = {
    **dict.fromkeys(("accuracy", "accuracy_interval", "person_accuracy", "macro_accuracy")),
    **dict.fromkeys(("macro_f1", "macro_auroc", "macro_auroc_error")),
    "num_persons": 0,
    **{f"per_class_{measure}": [] for measure in ("examples", "accuracy", "specificity", "f1", "auroc")},
    "most_confused": [],
}


def quality(scores: HeadScores | None) -> dict[str, Any]:
    """Return accuracy and its interval, and all measures by class and their means, under their names in results.json.

    Without samples it is :data:`UNSCORED`; if sites sent no counts by class, measures by class are empty.
    """
    if scores is None or not scores.confusion.num_examples:
        return dict(UNSCORED)
    confusion = scores.confusion
    measures = {
        **UNSCORED,
        "accuracy": confusion.accuracy,
        "accuracy_interval": wilson_interval(confusion.num_correct, confusion.num_examples),
        "person_accuracy": confusion.person_accuracy,
        "num_persons": confusion.persons,
        "macro_accuracy": _number(confusion.macro_accuracy),
    }
    if not confusion.class_examples.any():
        return measures
    by_class = {measure: getattr(confusion, f"per_class_{measure}") for measure in ("accuracy", "specificity", "f1")}
    by_class["auroc"] = scores.per_class_auroc
    return {
        **measures,
        "macro_f1": _number(confusion.macro_f1),
        "macro_auroc": _number(scores.macro_auroc),
        "macro_auroc_error": _number(scores.margins.macro_auroc_error),
        "per_class_examples": confusion.class_examples.tolist(),
        **{f"per_class_{measure}": list(map(_number, values.tolist())) for measure, values in by_class.items()},
        "most_confused": confusion.confused_pairs()[:MOST_CONFUSED],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def measure_of(entry: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the measure by which an entry of results.json is compared with others, and its value."""
    found = entry.get("targets") or {}
    if not found:
        return "accuracy", entry.get("accuracy")
    if found["kind"] == "labels":
        return "mean average precision", found["mean_average_precision"]
    return "R2", found["mean_r2"]


def head_to_take(results: Mapping[str, Any]) -> str:
    """Return the head that every page, card and command takes where none is named; "" if nothing says which.

    It is the method that the run recommends, or a trained head that is more accurate.
    """
    methods, trained = (
        {name: value for name, entry in results.get(kind, {}).items() if (value := measure_of(entry)[1]) is not None}
        for kind in ("methods", "training")
    )
    advised = (results.get("advice") or {}).get("method", "")
    first = advised or max(methods, key=methods.__getitem__, default="")
    return (
        max(trained, key=trained.__getitem__) if trained and max(trained.values()) > methods.get(first, 0.0) else first
    )
