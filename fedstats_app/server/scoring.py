"""Scoring the solved heads, on the server's test set or on what clients hold out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedstats_app.grid.evaluation import evaluate_on_clients
from fedstats_app.heads import CalibrationSums, ConfusionMatrix
from fedstats_app.methods import METHODS
from fedstats_app.outcomes.curve import CurvePoint
from fedstats_app.outcomes.method_result import MethodResult
from fedstats_app.results.communication import uplink_bytes
from fedstats_app.server.asking import solved_heads
from fedstats_app.server.run import Run
from fedstats_app.strategies import StatisticsStrategy


@dataclass(frozen=True)
class Scores:
    """What the heads were found to be worth.

    Attributes
    ----------
    evaluated_on : str
        "clients" or "server".
    confusion, calibration : dict
        By method, of the same samples.
    failures : dict
        From every client that was asked in vain to the reason.
    num_unreadable : int
        Test samples of the server that could not be read.
    curves : dict
        By method that has one, what it scores at other ranks.
    """

    evaluated_on: str
    confusion: dict[str, ConfusionMatrix]
    calibration: dict[str, CalibrationSums]
    failures: dict[int, str] = field(default_factory=dict)
    num_unreadable: int = 0
    curves: dict[str, list[CurvePoint]] = field(default_factory=dict)

    @property
    def num_examples(self) -> int:
        """Samples that the heads were scored on."""
        return max((matrix.num_examples for matrix in self.confusion.values()), default=0)

    @property
    def chance(self) -> float:
        """Accuracy of always naming the most frequent class of these samples, of those whose class is known."""
        most = max((int(matrix.matrix.sum(dim=1).max()) for matrix in self.confusion.values()), default=0)
        return most / max(self.num_examples, 1)


def score(run: Run, strategy: StatisticsStrategy) -> Scores:
    """Evaluate the heads of a finished strategy."""
    test_set, progress = run.test_set, run.progress
    if test_set is None:
        share = f"{100 * run.holdout:.0f}%"
        progress.say(f"evaluating on the {share} of their samples that clients kept for it, after {progress.elapsed}")
        asked = [outcome.client for outcome in strategy.outcomes if outcome.in_heads]
        found = evaluate_on_clients(run.grid, strategy.request, strategy.indexed_heads, asked)
        scores = Scores("clients", *found)
        if not scores.num_examples:
            progress.say("nothing was evaluated: no client kept enough samples (holdout-fraction, min-class-count)")
        return scores
    progress.say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {progress.elapsed}")
    heads = solved_heads(strategy)
    confusion = test_set.evaluate(heads, mask_absent=run.config.run.mask_absent)
    return Scores("server", confusion, test_set.calibrate(heads), num_unreadable=test_set.num_unreadable)


def method_result(strategy: StatisticsStrategy, method: str, scores: Scores) -> MethodResult:
    """Return one method's entry in results.json.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Finished.
    method : str
        One that it served.
    scores : Scores
        Of its heads; a method may be missing.
    """
    head, collection = strategy.heads[method], strategy.collection
    confusion, calibration = scores.confusion.get(method), scores.calibration.get(method)
    if confusion is not None and not confusion.num_examples:
        confusion = None
    per_class: list[float | None] = []
    if confusion is not None:
        per_class = [None if math.isnan(value) else value for value in confusion.per_class_accuracy.tolist()]
    return MethodResult(
        method=method,
        accuracy=None if confusion is None else confusion.accuracy,
        # Where sites told of no class by itself, there is an accuracy but no mean over classes.
        macro_accuracy=confusion.macro_accuracy if confusion and any(one is not None for one in per_class) else None,
        per_class_accuracy=per_class,
        num_examples=collection.num_examples,
        num_clients=collection.num_merged,
        uplink_bytes=_uplink_bytes(strategy, method),
        wire_bytes=strategy.wire_bytes(method),
        solve_seconds=strategy.solve_seconds[method],
        regulariser=head.report.regulariser,
        ridge_effective=head.report.ridge_effective,
        condition_number=head.report.condition_number,
        calibration=None if calibration is None else calibration.fit(),
        notes=list(head.report.notes),
        parameters=dict(head.report.parameters),
    )


def _uplink_bytes(strategy: StatisticsStrategy, method: str) -> int:
    """Return what clients sent by the paper's formula; without a paper that has one, what they did send."""
    record, statistics = METHODS[method], strategy.statistics(method)
    if record.uplink is None:
        return strategy.wire_bytes(method)
    return uplink_bytes(
        method,
        num_rows=statistics.num_rows if record.needs.several_means else statistics.num_pairs,
        num_clients=strategy.collection.num_merged,
        num_classes=strategy.num_classes,
        feature_dim=statistics.feature_dim,
    )
