"""Scoring the solved heads, on the server's test set or on what clients hold out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.evaluation import Scores, evaluate_on_clients
from fedstats_app.heads import LinearHead
from fedstats_app.heads.calibration import judged
from fedstats_app.heads.coverage import LabelMargins
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.heads.likeness import Likeness, limit
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut, shifted
from fedstats_app.methods import Need
from fedstats_app.report.method_result import MethodResult, client_spread, quality
from fedstats_app.report.text_columns import bytes_with_unit
from fedstats_app.report.training_record import BYTES_PER_NUMBER
from fedstats_app.server.run import Run
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.training.start import probe_step

# From this ratio of the largest class to the smallest on, a note names the option for long tails.
LONG_TAIL = 10


# The only method whose head without each sample follows from the head itself.
RIDGE = "fed3r"
# Test samples whose distances are measured: the limit is the 20th largest of these.
_MOST_MEASURED = 2000
_SAMPLES = {"server": "test samples of the server", "clients": "samples that sites kept"}


def score(run: Run, strategy: StatisticsStrategy) -> Scores:
    """Evaluate the heads of a finished strategy on the server's test set, or on the clients' hold-out samples."""
    test_set, progress = run.test_set, run.progress
    if test_set is not None:
        progress.say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {progress.elapsed}")
        # Without a hold-out the ridge's temperature comes from training samples, wherever it is.
        return test_set.score(strategy.heads, every_temperature=not run.config.data.holdout_fraction)
    if not (able := able_clients(run, strategy)):
        progress.say("not evaluated: releases hold no samples (test-dataset, or --test of fedstats merge, names some)")
        return Scores("")
    if not run.holdout:
        return Scores("")
    share = f"{100 * run.holdout:.0f}%"
    progress.say(f"evaluating on the {share} of their samples that sites kept for it, after {progress.elapsed}")
    if run.config.federation.sums_only:
        return _under_masks(run, strategy, strategy.heads) or Scores("")
    scores = evaluate_on_clients(
        run.grid, strategy.request, strategy.heads, able, max_share=run.config.tuning.max_share
    )
    if not scores.num_examples:
        progress.say("nothing was evaluated: no site kept enough samples (holdout-fraction, min-class-count)")
    return scores


def score_targets(run: Run, strategy: StatisticsStrategy) -> Scores:
    """Evaluate heads of several labels or numbers, on samples that no threshold was chosen on."""
    able, kind = able_clients(run, strategy), run.targets
    if able and not run.config.federation.is_noisy:
        _set_by_leave_one_out(run, strategy, able)
    if run.test_set is not None:
        return run.test_set.score_targets(strategy.heads, kind)
    if not able or not run.holdout:
        return Scores("")
    return evaluate_on_clients(run.grid, strategy.request, strategy.heads, able)


def _set_by_leave_one_out(run: Run, strategy: StatisticsStrategy, able: dict[int, int]) -> None:
    """Set thresholds, or deviations of numbers, by the scores of training samples, each left out at its site."""
    known: list[tuple[LinearHead, TargetScores]] = []
    for name, head in strategy.heads.items():
        if "ridge_lambda" not in head.report.parameters:
            continue
        found = next((scores for before, scores in known if torch.equal(before.weight, head.weight)), None)
        method = strategy.methods()[name]
        if found is None:
            found_by = "thresholds" if run.targets == "labels" else "intervals"
            run.progress.say(f"{found_by}: each sample is left out of {name} at its site, after {run.progress.elapsed}")
            left_out = TargetLeaveOneOut.of(method.inputs(strategy.collection.total), head)
            if run.config.federation.sums_only:
                replies = _under_masks(run, strategy, {name: head}, left_out)
            else:
                replies = evaluate_on_clients(run.grid, strategy.request, {name: head}, able, left_out=left_out)
            if replies is None:
                return
            known.append((head, found := replies.targets[name]))
        if run.targets == "labels":
            strategy.heads[name] = shifted(head, found.best_thresholds(common=method.common_threshold))
        elif bool((found.moments[:, 0] > 0).all()):
            deviations = tuple((found.moments[:, 3] / found.moments[:, 0]).sqrt().tolist())
            strategy.heads[name] = replace(head, report=replace(head.report, deviations=deviations))


def with_leave_one_out(run: Run, strategy: StatisticsStrategy, scores: Scores) -> Scores:
    """Add the ridge's scores on training samples, each left out of it, and its temperature by these."""
    left_out = _leave_one_out(run, strategy)
    if left_out is None:
        return scores
    calibrations = dict(scores.calibrations)
    if (chosen := left_out.calibrations[RIDGE]) is not None:
        chosen = replace(chosen, fitted_on="training samples of the sites, each left out of the head")
        parts = [(tested.calibration, chosen.temperature) for tested in [scores.heads.get(RIDGE)] if tested]
        calibrations[RIDGE] = judged(chosen, parts) if parts else chosen
    return replace(scores, left_out=left_out, calibrations=calibrations)


def _leave_one_out(run: Run, strategy: StatisticsStrategy) -> Scores | None:
    """Let sites judge the ridge on the samples in the statistics, each left out of it; None if the run does not ask.

    A run asks if its holdout-fraction is 0, it names no persons, and the ridge has the defaults but for lambda.
    """
    method, head = strategy.methods().get(RIDGE), strategy.heads.get(RIDGE)
    data, federation = run.config.data, run.config.federation
    if data.holdout_fraction or federation.is_noisy or data.person_column or method is None or head is None:
        return None
    ridge_lambda = head.report.parameters["ridge_lambda"]
    if replace(method.options, ridge_lambda="auto") != method.options_type() or not (
        able := able_clients(run, strategy)
    ):
        return None
    left_out = LeaveOneOut.of(strategy.collection.total.shared(), ridge_lambda)
    sent = bytes_with_unit(BYTES_PER_NUMBER * len(left_out.inverse) * (len(left_out.inverse) + 1) / 2)
    progress = run.progress
    progress.say(f"leaving each sample out of Fed3R in turn at its site: {sent} to each, after {progress.elapsed}")
    if federation.sums_only:
        return _under_masks(run, strategy, {RIDGE: head}, left_out)
    found = evaluate_on_clients(
        run.grid, strategy.request, {RIDGE: head}, able, left_out=left_out, max_share=run.config.tuning.max_share
    )
    return found if found.num_examples else None


def _under_masks(
    run: Run,
    strategy: StatisticsStrategy,
    heads: Mapping[str, LinearHead],
    left_out: LeaveOneOut | TargetLeaveOneOut | None = None,
) -> Scores | None:
    """Score heads by a sum over the clients in the statistics; None, and the reason is said, if there is none."""
    from fedstats_app.strategies.secure_scores import scores_under_masks  # other runs do without
    from fedstats_app.strategies.secure_sums import SecureStatisticsStrategy

    assert isinstance(strategy, SecureStatisticsStrategy)  # noqa: S101  # with secure sums
    try:
        return scores_under_masks(strategy, heads, left_out)
    except (TooFewClients, ValueError) as error:
        run.progress.say(f"not evaluated: {error}")
        return None


def margins_for_sets(method: str, scores: Scores) -> LabelMargins | None:
    """Return the margins for their right classes of samples that a head was not made from; None where there are none.

    Where no samples were kept apart, the ridge's are of the sites' training samples, each left out of it.
    """
    found, samples = scores.heads.get(method), _SAMPLES.get(scores.evaluated_on, "")
    if found is None and method == RIDGE and scores.left_out is not None:
        found, samples = scores.left_out.heads[RIDGE], "training samples of the sites, each left out of the head"
    if found is None:
        return None
    pooled = found.margins.positives.sum(dim=0) + found.of_labels
    number = int(pooled.sum())
    return LabelMargins(pooled, found.margins.positives, f"{number:,} {samples}") if number else None


def distance_limit(run: Run, strategy: StatisticsStrategy) -> float | None:
    """Return how far the server's test samples are from those behind the heads (:mod:`fedstats_app.heads.likeness`).

    None without test samples, or where predictions cannot measure it: without a Gram matrix in the statistics saved.
    """
    test_set, config = run.test_set, run.config
    saved = config.run.saves_sum and not config.federation.is_noisy and not run.targets
    if test_set is None or not saved or not strategy.collection.total.has_gram:
        return None
    features, _ = test_set.evenly_spaced(_MOST_MEASURED)
    return limit(Likeness.of(strategy.collection.total.shared()).distances(features))


def able_clients(run: Run, strategy: StatisticsStrategy) -> dict[int, int]:
    """Return the clients in the heads that hold samples, with the number of these in the statistics."""
    merged = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.in_heads}
    released = run.federation.statistics_only
    return {client: number for client, number in merged.items() if client not in released}


def method_result(strategy: StatisticsStrategy, method: str, scores: Scores) -> MethodResult:
    """Make one method's entry in results.json; its scores may be missing."""
    head, collection = strategy.heads[method], strategy.collection
    found, sums = scores.heads.get(method), collection.total.summed(gram=False)
    return MethodResult(
        method=method,
        quality=quality(found),
        targets=scores.targets[method].measures() if method in scores.targets else None,
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
    client, share = scores.largest
    for result in results if 0.5 < share < 1.0 else ():
        if result.client_accuracy:
            result.notes.append(
                f"client {client} has {100 * share:.0f}% of the samples that it was scored on; with every client "
                f"counting alike the accuracy is {100 * result.client_accuracy['mean']:.2f}%"
            )
    counts = strategy.collection.total.summed(gram=False).class_counts
    present = counts[counts > 0]
    ratio = int(present.max()) / int(present.min()) if len(present) else 1.0
    if ratio >= LONG_TAIL:
        for result in results:
            if getattr(strategy.methods()[result.method].options, "class_balance", True) is False:
                result.notes.append(
                    f"the largest class has {ratio:.0f} times the samples of the smallest: if classes are equally "
                    f"frequent where the head is used, {result.method}@class-balance=true may be more accurate"
                )
    return results


def _uplink_bytes(strategy: StatisticsStrategy, method: str) -> int:
    """Count what clients sent by the paper's formula; without a paper that has one, what they did send."""
    configured, statistics = strategy.methods()[method], strategy.collection.total
    rows = statistics.num_rows if Need.SEVERAL_MEANS in configured.needs else statistics.num_pairs
    clients = strategy.collection.num_merged
    numbers = configured.uplink(rows, clients, strategy.num_classes, statistics.feature_dim)
    return strategy.wire_bytes(method) if numbers is None else BYTES_PER_NUMBER * numbers
