"""Scoring the solved heads, on the server's test set or on what clients hold out."""

from __future__ import annotations

from fedstats_app.grid.evaluation import Scores, evaluate_on_clients
from fedstats_app.methods import Need
from fedstats_app.report.method_result import MethodResult, client_spread, quality
from fedstats_app.report.training_record import BYTES_PER_NUMBER
from fedstats_app.server.run import Run
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.training.start import probe_step

# From this ratio of the largest class to the smallest on, a note names the option for long tails.
LONG_TAIL = 10


def score(run: Run, strategy: StatisticsStrategy) -> Scores:
    """Evaluate the heads of a finished strategy on the server's test set, or on the clients' hold-out samples."""
    test_set, progress = run.test_set, run.progress
    if test_set is not None:
        progress.say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {progress.elapsed}")
        return test_set.score(strategy.heads)
    merged = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.in_heads}
    released = run.federation.statistics_only
    if not (able := {client: number for client, number in merged.items() if client not in released}):
        progress.say("not evaluated: releases hold no samples (test-dataset, or --test of fedstats merge, names some)")
        return Scores("")
    share = f"{100 * run.holdout:.0f}%"
    progress.say(f"evaluating on the {share} of their samples that sites kept for it, after {progress.elapsed}")
    scores = evaluate_on_clients(run.grid, strategy.request, strategy.heads, able)
    if not scores.num_examples:
        progress.say("nothing was evaluated: no site kept enough samples (holdout-fraction, min-class-count)")
    return scores


def method_result(strategy: StatisticsStrategy, method: str, scores: Scores) -> MethodResult:
    """Make one method's entry in results.json; its scores may be missing."""
    head, collection = strategy.heads[method], strategy.collection
    found, sums = scores.heads.get(method), collection.total.summed(gram=False)
    return MethodResult(
        method=method,
        **quality(found),
        client_accuracy=client_spread(scores.accuracies.get(method, {})),
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
        probe_step=probe_step(sums.class_counts, sums.class_sums),
    )


def method_results(strategy: StatisticsStrategy, scores: Scores) -> list[MethodResult]:
    """Make every method's entry, with a note on long tails."""
    results = [method_result(strategy, name, scores) for name in strategy.heads]
    counts = strategy.collection.total.summed(gram=False).class_counts
    present = counts[counts > 0]
    ratio = int(present.max()) / int(present.min()) if len(present) else 1.0
    if ratio >= LONG_TAIL:
        for result in results:
            if getattr(strategy.methods()[result.method].options, "class_balance", True) is False:
                result.notes.append(
                    f"the largest class has {ratio:.0f} times the samples of the smallest: if all are alike frequent "
                    f"where the head is used, {result.method}@class-balance=true may be more accurate"
                )
    return results


def _uplink_bytes(strategy: StatisticsStrategy, method: str) -> int:
    """Count what clients sent by the paper's formula; without a paper that has one, what they did send."""
    configured, statistics = strategy.methods()[method], strategy.collection.total
    rows = statistics.num_rows if Need.SEVERAL_MEANS in configured.needs else statistics.num_pairs
    clients = strategy.collection.num_merged
    numbers = configured.uplink(rows, clients, strategy.num_classes, statistics.feature_dim)
    return strategy.wire_bytes(method) if numbers is None else BYTES_PER_NUMBER * numbers
