"""Scoring the solved heads, on the server's test set or on what clients hold out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedstats_app.grid.curve import CurvePoint
from fedstats_app.grid.evaluation import evaluate_on_clients
from fedstats_app.heads import Calibration, ConfusionMatrix, HeadScores
from fedstats_app.methods import FEDROOT, first_of
from fedstats_app.report.communication import Sizes, uplink_formula
from fedstats_app.report.method_result import ClientAccuracy, MethodResult, quality
from fedstats_app.server.asked import Asked
from fedstats_app.server.asking import solved_heads
from fedstats_app.server.rank_curve import curve_points
from fedstats_app.server.run import Run
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.training.probe_rate import probe_step


@dataclass(frozen=True)
class Scores:
    """What the heads were found to be worth.

    Attributes
    ----------
    evaluated_on : str
        "clients" or "server"; "" before anybody evaluated.
    heads : mapping
        By method, on the same samples.
    accuracies : mapping
        By method and client; empty where the server evaluated.
    examples : mapping
        From client to the samples that it evaluated on; empty where the server evaluated.
    calibrations : mapping
        By method, what the same samples say of its temperature; None where they say nothing.
    failures : dict
        From every client that was asked in vain to the reason.
    num_unreadable : int
        Test samples of the server that could not be read.
    curves : dict
        By method that has one, what it scores at other ranks.
    """

    evaluated_on: str
    heads: Mapping[str, HeadScores] = field(default_factory=dict)
    accuracies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    examples: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    calibrations: Mapping[str, Calibration | None] = field(default_factory=dict)
    num_unreadable: int = 0
    curves: dict[str, list[CurvePoint]] = field(default_factory=dict)

    @property
    def confusion(self) -> dict[str, ConfusionMatrix]:
        """Confusion matrices by method."""
        return {name: scores.confusion for name, scores in self.heads.items()}

    @property
    def num_examples(self) -> int:
        """Samples that the heads were scored on."""
        return max((matrix.num_examples for matrix in self.confusion.values()), default=0)

    @property
    def chance(self) -> float:
        """Accuracy of always naming the most frequent class of these samples, of those whose class is known."""
        most = max((int(matrix.class_examples.max()) for matrix in self.confusion.values()), default=0)
        return most / max(self.num_examples, 1)


def score(run: Run, strategy: StatisticsStrategy, asked: Asked) -> Scores:
    """Evaluate the heads of a finished strategy."""
    test_set, progress = run.test_set, run.progress
    if test_set is None:
        share = f"{100 * run.holdout:.0f}%"
        progress.say(f"evaluating on the {share} of their samples that clients kept for it, after {progress.elapsed}")
        merged = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.in_heads}
        found = evaluate_on_clients(run.grid, strategy.request, strategy.indexed_heads, merged)
        fitted = {name: one.calibration.fit() for name, one in found.heads.items()}
        scores = Scores("clients", found.heads, found.accuracies, found.examples, found.failures, fitted)
        if not scores.num_examples:
            progress.say("nothing was evaluated: no client kept enough samples (holdout-fraction, min-class-count)")
        return scores
    progress.say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {progress.elapsed}")
    heads = solved_heads(strategy)
    scored, fitted = test_set.score(heads, mask_absent=run.config.run.mask_absent)
    return Scores("server", scored, calibrations=fitted, num_unreadable=test_set.num_unreadable)


def with_curves(run: Run, strategy: StatisticsStrategy, asked: Asked, scores: Scores) -> Scores:
    """Return scores with what FedRoot scores at other ranks, where that can be said."""
    name = first_of(FEDROOT, strategy.methods())
    if asked.curve is None or name not in scores.heads:
        return scores
    points = curve_points(run, strategy, name, asked.curve, scores.heads[name])
    return replace(scores, curves={name: points} if points else {})


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
    found = scores.heads.get(method)
    return MethodResult(
        method=method,
        **quality(found),
        client_accuracy=ClientAccuracy.of(scores.accuracies.get(method, {})),
        num_examples=collection.num_examples,
        num_clients=collection.num_merged,
        uplink_bytes=_uplink_bytes(strategy, method),
        wire_bytes=strategy.wire_bytes(method),
        solve_seconds=strategy.solve_seconds[method],
        regulariser=head.report.regulariser,
        ridge_effective=head.report.ridge_effective,
        condition_number=head.report.condition_number,
        calibration=scores.calibrations.get(method),
        notes=list(head.report.notes),
        parameters=dict(head.report.parameters),
        probe_step=_probe_step(strategy, method),
    )


def _uplink_bytes(strategy: StatisticsStrategy, method: str) -> int:
    """Return what clients sent by the paper's formula; without a paper that has one, what they did send."""
    configured, statistics = strategy.methods()[method], strategy.statistics(method)
    if configured.uplink is None:
        return strategy.wire_bytes(method)
    sizes = Sizes(
        rows=statistics.num_rows if configured.method.needs.several_means else statistics.num_pairs,
        clients=strategy.collection.num_merged,
        classes=strategy.num_classes,
        feature_dim=statistics.feature_dim,
    )
    return uplink_formula(configured.uplink)(sizes)


def _probe_step(strategy: StatisticsStrategy, method: str) -> float | None:
    total = strategy.statistics(method).summed(gram=False)
    return probe_step(total.class_counts, total.class_sums)
