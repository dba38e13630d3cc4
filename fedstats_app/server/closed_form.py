"""Stage 1 of a run: ask for statistics, solve, evaluate, write down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.paths import without_folders
from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.methods import is_experiment
from fedstats_app.report.advice import Advice, advice_lines, advise
from fedstats_app.report.disclosure import policy_record
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.model_card import write_model_card
from fedstats_app.report.record import head_metadata
from fedstats_app.report.state import Phases, State, read_state
from fedstats_app.report.statistics_file import STATISTICS_FILE, forget_accumulated, load_statistics, save_statistics
from fedstats_app.report.tables import results_table
from fedstats_app.server.asked import Asked
from fedstats_app.server.asking import ask, solved_heads, statistics_strategy
from fedstats_app.server.drawing import Drawing, drawing
from fedstats_app.server.examples import save_examples
from fedstats_app.server.free_memory import give_back_memory
from fedstats_app.server.influence import influence_lines, measure, with_shares
from fedstats_app.server.run import Run
from fedstats_app.server.scoring import Scores, method_result, score, with_curves
from fedstats_app.server.statistics_error import measured_error
from fedstats_app.statistics import CollectedStatistics
from fedstats_app.strategies import StatisticsStrategy

NO_SCORES = Scores("")


class ClosedForm:
    """Solves for a head by every method that the run asks for."""

    def run(self, run: Run, state: State) -> State:
        """Do all of it, or take what the folder of an interrupted run has."""
        needed = bool(run.config.personal.approaches)
        if run.config.run.resume and run.folder.read_results():
            forget_accumulated(run.folder.path)
            return read_state(run.folder.path, _kept_statistics(run) if needed else None)
        strategy, phases = statistics_strategy(run), Phases(lambda: run.progress.seconds)
        phases.end("preparation")
        asked = ask(run, strategy)
        give_back_memory()
        collected = strategy.collection.collected(run.class_names, run.folder.run_id)
        if run.config.run.save_statistics:
            with run.progress.doing("writing the statistics"):
                save_statistics(run.folder.path, collected)
        phases.end("statistics and solving")
        # Before anybody evaluates: what goes wrong then must not cost the heads.
        _save_heads(run, strategy, [method_result(strategy, name, NO_SCORES) for name in strategy.heads], NO_SCORES)
        give_back_memory()
        with run.progress.doing("evaluating"):
            scores = score(run, strategy, asked)
            results = [method_result(strategy, name, scores) for name in strategy.heads]
        to_take = [one for one in results if not is_experiment(strategy.methods()[one.method])]
        advice = advise(to_take, scores.num_examples, chance=scores.chance)
        # What somebody waits for comes first; the rest is for the folder.
        print(results_table(results, _num_merged(strategy.outcomes)), flush=True)
        for line in advice_lines(advice):
            run.progress.say(line)
        with drawing(run.folder.plots_path if run.config.run.plots else None) as plots:
            _draw(plots, run, label_counts=_label_counts(asked), confusion=scores)
            scores = with_curves(run, strategy, asked, scores)
            _draw(plots, run, results=results, curves=scores)
            give_back_memory()
            with run.progress.doing("measuring what each client changes"):
                harm = _measure_clients(run, strategy, asked)
            error = _statistics_error(run, strategy)
            phases.end("evaluation")
            with run.progress.doing("writing results and plots"):
                _write(run, strategy, asked, scores, results, advice, harm, error, phases)
                plots.finish()
        forget_accumulated(run.folder.path)
        for line in (*_what_failed(strategy.outcomes, scores), *harm):
            run.progress.say(line)
        run.progress.say(f"done after {run.progress.elapsed}")
        if run.config.run.plots and run.test_set is not None:
            shown = _head_to_take(results, advice)
            save_examples(run.folder.path, run.test_set, shown, solved_heads(strategy), run.config.run.mask_absent)
        # Later stages build on what the folder says, whether the run was interrupted or not.
        return read_state(run.folder.path, collected if needed else None)


def _head_to_take(results: Sequence[MethodResult], advice: Advice | None) -> MethodResult | None:
    """Return the result of the method that is advised, else of the most accurate one; None without accuracies."""
    scored = {result.method: result for result in results if result.accuracy is not None}
    if advice is not None:
        return scored[advice.choice.method]
    return max(scored.values(), key=lambda result: result.accuracy or 0.0, default=None)


def _kept_statistics(run: Run) -> CollectedStatistics:
    if not (run.folder.path / STATISTICS_FILE).is_file():
        raise ValueError(
            "resume: personal models need the statistics of the first stage, which this run did not keep "
            "(save-statistics was false): start a new run"
        )
    return load_statistics(run.folder.path)


def _measure_clients(run: Run, strategy: StatisticsStrategy, asked: Asked) -> list[str]:
    """Write down every client's shares and influence; return a line for each whose influence is large."""
    test = None if run.test_set is None else run.test_set.evenly_spaced
    measured = measure(strategy, asked.kept, asked.largest, test)
    kept, total = strategy.collection.capped or asked.kept, strategy.collection.statistics(0)
    outcomes = with_shares(strategy.outcomes, kept, total, measured, run.class_names)
    run.folder.write_clients(outcome.to_json() for outcome in outcomes)
    return influence_lines(measured, outcomes, run.class_names)


def _statistics_error(run: Run, strategy: StatisticsStrategy) -> Mapping[str, Mapping[str, float]] | None:
    if not run.config.run.statistics_error:
        return None
    with run.progress.doing("comparing the statistics with those of all samples in one place"):
        return measured_error(run, strategy, [outcome.client for outcome in strategy.outcomes if outcome.in_heads])


def _num_merged(outcomes: Sequence[ClientOutcome]) -> int:
    return sum(outcome.outcome == "merged" for outcome in outcomes)


def _write(
    run: Run,
    strategy: StatisticsStrategy,
    asked: Asked,
    scores: Scores,
    results: Sequence[MethodResult],
    advice: Advice | None,
    harm: Sequence[str],
    error: Mapping[str, Mapping[str, float]] | None,
    phases: Phases,
) -> None:
    """Fill the run folder."""
    folder, outcomes = run.folder, strategy.outcomes
    _save_heads(run, strategy, results, scores)
    folder.write_results(
        {
            "methods": {result.method: result.to_json() for result in results},
            "curve": {name: [point.to_json() for point in curve] for name, curve in scores.curves.items()},
            "advice": None if advice is None else {**advice.to_json(), "text": advice_lines(advice)},
            "statistics_error": error,
            "num_clients_asked": len(outcomes),
            "num_clients_merged": _num_merged(outcomes),
            "num_clients_known": sum(outcome.outcome == "known" for outcome in outcomes),
            "extends": run.extension.to_json(),
            "policy": policy_record(outcomes, run.federation.any_app),
            "harmful_clients": list(harm),
            "num_unreadable": sum(outcome.num_unreadable for outcome in outcomes),
            "refused_nodes": {str(node): reason for node, reason in run.federation.refused.items()},
            "evaluated_on": scores.evaluated_on,
            "num_test_examples": scores.num_examples,
            "num_test_unreadable": scores.num_unreadable,
            "evaluation_examples": {str(client): number for client, number in sorted(scores.examples.items())},
            "evaluation_failures": {str(client): reason for client, reason in scores.failures.items()},
            "wire_bytes_received": strategy.collection.total_wire_bytes,
            "rounds": asked.rounds,
            "seconds": round(run.progress.seconds, 3),
            "seconds_by_phase": phases.seconds,
        }
    )
    write_model_card(folder.path)


def _label_counts(asked: Asked) -> NDArray[np.int64] | None:
    """Return (K, C) samples per client and class; None where nobody shows them."""
    labels = [asked.label_counts[client] for client in sorted(asked.label_counts)]
    return np.stack(labels) if labels else None


def _draw(
    plots: Drawing,
    run: Run,
    *,
    results: Sequence[MethodResult] = (),
    curves: Scores = NO_SCORES,
    label_counts: NDArray[np.int64] | None = None,
    confusion: Scores = NO_SCORES,
) -> None:
    """Have drawn what there is of these."""
    plots.plots(
        results,
        class_names=run.class_names,
        label_counts=label_counts,
        confusion_matrices={name: matrix.matrix.numpy() for name, matrix in confusion.confusion.items()},
        dataset=without_folders(run.data_name),
        backbone=without_folders(run.config.backbone.backbone),
        curves=curves.curves,
    )


def _save_heads(run: Run, strategy: StatisticsStrategy, results: Sequence[MethodResult], scores: Scores) -> None:
    heads = solved_heads(strategy)
    for result in results:
        feature_map, head = heads[result.method]
        own = head_metadata(result, feature_map, evaluated_on=scores.evaluated_on)
        run.folder.save_head(result.method, head, {**run.metadata, **own})


def _what_failed(outcomes: Sequence[ClientOutcome], scores: Scores) -> list[str]:
    """Return in words, a line each, what is not as it should be."""
    failed = [outcome for outcome in outcomes if not outcome.in_heads]
    known = sum(outcome.outcome == "known" for outcome in outcomes)
    suppressed = sum(outcome.num_suppressed_classes > 0 for outcome in outcomes)
    unreadable = sum(outcome.num_unreadable for outcome in outcomes)
    lines = [f"client {outcome.client} {outcome.outcome}: {outcome.reason}" for outcome in failed[:10]]
    if failed:
        lines.append(f"{len(failed)} of {len(outcomes)} clients are not in the heads; all reasons are in clients.jsonl")
    if known:
        lines.append(f"{known} clients were in the statistics to extend already and are not counted twice")
    if suppressed:
        lines.append(f"{suppressed} clients left out classes of which they have few samples (min-class-count)")
    lines += [f"client {client} did not evaluate: {reason}" for client, reason in list(scores.failures.items())[:10]]
    if scores.failures:
        lines.append(f"{len(scores.failures)} clients did not evaluate; all reasons are in results.json")
    if scores.num_unreadable:
        lines.append(f"{scores.num_unreadable} test samples could not be read and are not in the accuracy")
    if unreadable:
        lines.append(f"{unreadable} samples could not be read; their names are in the log of the node that has them")
    return lines
