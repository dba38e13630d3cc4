"""Stage 1 of a run: ask for statistics, solve, evaluate, write down."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from types import ModuleType

from fedstats_app.base.progress import Step
from fedstats_app.data.paths import without_folders
from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.grid.discovery import Federation
from fedstats_app.grid.evaluation import Scores
from fedstats_app.heads.evidence import label_evidence
from fedstats_app.methods.method import Need
from fedstats_app.report.advice import LEFT_OUT, Advice, Candidate, Sends, advise
from fedstats_app.report.head_file import DISTANCE_LIMIT, LABEL_MARGINS
from fedstats_app.report.method_result import MethodResult, measure_of
from fedstats_app.report.record import head_metadata
from fedstats_app.report.state import Phases, State, read_state
from fedstats_app.report.statistics_file import (
    forget_client_statistics,
    save_statistics,
)
from fedstats_app.report.tables import heads_table
from fedstats_app.report.wording import (
    NO_NOISE,
    evidence_in_words,
    left_out_in_words,
    privacy_in_words,
    unseen_in_words,
)
from fedstats_app.server.client_notes import ClientNotes
from fedstats_app.server.influence import MOST_SECONDS, Examined, examine_clients
from fedstats_app.server.run import Run
from fedstats_app.server.scoring import (
    distance_limit,
    margins_for_sets,
    method_result,
    method_results,
    score,
    score_targets,
    with_leave_one_out,
)
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

NO_SCORES = Scores("")
_FAILURES_SHOWN = 10


def give_back_memory() -> None:
    """Return freed memory to the system if the C library is GNU's; elsewhere do nothing.

    GNU's keeps freed memory for each thread apart. A server that handles large tensors in one thread after another
    would grow to several times the size of its data.
    """
    with suppress(OSError, TypeError, AttributeError):  # no such library or function; on Windows None is no library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def solve_heads(run: Run, state: State) -> State:
    """Solve for a head by every method of the run, or read them from the folder of an interrupted run."""
    folder = run.folder
    if run.config.run.resume and folder.read_results():
        return read_state(folder.path)
    strategy, phases = run.statistics_strategy(), Phases(lambda: run.progress.seconds)
    phases.end("preparation")
    notes = collect(run, strategy)
    # Matplotlib takes a second to load: beside the mathematics, which leaves Python to others.
    Thread(target=_plots, args=(run,), name="fedstats-plots").start()
    strategy.solve()
    keep(run, strategy)
    phases.end("statistics and solving")
    scores = evaluate(run, strategy)
    report(run, strategy, notes, scores, phases)
    # Later stages read the folder, whether the run was interrupted or not.
    return read_state(folder.path)


def collect(run: Run, strategy: StatisticsStrategy) -> ClientNotes:
    """Ask all clients for statistics, and fold these into the strategy's sums."""
    notes = _begun(run, strategy)
    with run.progress.doing("statistics") as step:
        strategy.on_reply = _watching(run, strategy, notes, step)
        strategy.collect(run.grid)
    if not run.config.federation.is_noisy and not strategy.collection.total.num_examples:
        raise ValueError(
            "no site sent a sample: every class has fewer samples there than min-class-count, or none can be read"
        )
    give_back_memory()
    return notes


def keep(run: Run, strategy: StatisticsStrategy) -> None:
    """Write down statistics and heads before the evaluation, so that an error there does not cost them."""
    # Of sums with noise there are no statistics that clients could be added to.
    if run.config.run.saves_sum and not run.config.federation.is_noisy:
        with run.progress.doing("writing the statistics"):
            save_statistics(run.folder.path, strategy.collection.collected(run.class_names, run.folder.run_id))
    _save_heads(run, strategy, NO_SCORES)
    give_back_memory()


def evaluate(run: Run, strategy: StatisticsStrategy) -> Scores:
    """Score the heads on the server's test set, or on the clients' hold-out samples."""
    if run.targets:
        with run.progress.doing("evaluating"):
            return score_targets(run, strategy)
    if run.config.federation.is_noisy and run.test_set is None:
        return NO_SCORES  # every score would be one more answer to account for
    with run.progress.doing("evaluating"):
        return with_leave_one_out(run, strategy, score(run, strategy))


def report(run: Run, strategy: StatisticsStrategy, notes: ClientNotes, scores: Scores, phases: Phases) -> None:
    """Print the table, then find clients that harm the others, and write results and figures."""
    config, folder, progress = run.config, run.folder, run.progress
    results = method_results(strategy, scores)
    advice = _advice(strategy, results, scores)
    # What users wait for comes first; the rest is for the folder.
    promise = NO_NOISE if run.promise is None else run.promise.to_json()
    merged = _num_with(strategy.outcomes, "merged")
    taken = advice.choice.method if advice else ""
    chosen = taken or next(iter(strategy.heads), "")
    print(heads_table({result.method: result.to_json() for result in results}, merged, taken), flush=True)
    print(f"differential privacy: {privacy_in_words(promise)}", flush=True)
    left_out = left_out_in_words(scores.to_json()["leave_one_out"], run.backbone.kind)
    for line in (*(advice.text if advice else ()), *filter(None, [left_out])):
        progress.say(line)
    evidence = _evidence(run, strategy)
    if evidence:
        progress.say(evidence_in_words(evidence))
    unseen = None
    if not run.federation.simulated or config.partition.by_column:
        from fedstats_app.server.unseen import score_unseen  # other runs do without

        unseen = score_unseen(run, strategy, notes.kept, chosen)
        if unseen is not None:
            progress.say(unseen_in_words(unseen, run.backbone.kind))
    # Beside what follows: torch leaves Python to others while it computes.
    with ThreadPoolExecutor(1, thread_name_prefix="fedstats-plots") as thread:
        drawn = thread.submit(_draw, run, results, chosen, scores)
        give_back_memory()
        with progress.doing(f"measuring what each site changes, groups of sites for at most {MOST_SECONDS:.0f} s"):
            examined = Examined(strategy.outcomes, [], None)
            if not (config.federation.sums_only or run.targets):
                examined = examine_clients(run, strategy, notes)
            folder.write_clients(outcome.to_json() for outcome in examined.outcomes)
        phases.end("evaluation")
        with progress.doing("writing results and plots"):
            _save_heads(run, strategy, scores)
            folder.write_results(
                {
                    "methods": {result.method: result.to_json() for result in results},
                    "advice": None if advice is None else advice.to_json(),
                    "evidence": evidence,
                    "unseen_site": unseen,
                    **_of_clients(strategy, run.federation),
                    "differential_privacy": promise,
                    "extends": run.extension.to_json(),
                    "influential_clients": examined.lines,
                    "without_influential": examined.without,
                    **scores.to_json(),
                    "seconds": round(progress.seconds, 3),
                    "seconds_by_phase": phases.seconds,
                }
            )
            drawn.result()
    for line in _failures(run, strategy.outcomes, scores):
        progress.say(line)
    progress.say(f"the heads are done after {progress.elapsed}")


def _begun(run: Run, strategy: StatisticsStrategy) -> ClientNotes:
    """Take up an earlier run's statistics, and forget what an interruption left, before any client is asked."""
    options, folder, progress = run.config.run, run.folder, run.progress
    clients = run.federation.hosts
    notes = ClientNotes(run, strategy)
    run.extension.apply(strategy, run.class_names)
    (folder.path / "clients.jsonl").unlink(missing_ok=True)
    forget_client_statistics(folder.path)
    if options.saves_clients:
        run.extension.take_over_clients(folder.path, progress.say)
    progress.say(f"asking {len(clients)} sites for the statistics of their features")
    run.grid.reply_bytes = strategy.expected_reply_bytes
    return notes


def _watching(
    run: Run, strategy: StatisticsStrategy, notes: ClientNotes, step: Step
) -> Callable[[ClientOutcome, ReceivedStatistics | None], None]:
    """Make the strategy's callback for every client."""
    progress, num_clients = run.progress, len(run.federation.hosts)
    failed = 0

    def on_reply(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        nonlocal failed
        notes.note(outcome, received)
        collection, answered = strategy.collection, len(strategy.outcomes)
        failed += not outcome.in_heads
        counts = f"{collection.num_examples:,} samples, {collection.total_wire_bytes / 1e6:,.1f} MB up"
        counts += f", {failed} failed" if failed else ""
        if answered < num_clients:
            step.at(step.done, f"statistics, {counts} so far")
        else:
            progress.say(f"{answered} of {num_clients} sites answered, {counts}, {progress.elapsed}")
            step.at(step.done, "solving")

    return on_reply


def _plots(run: Run) -> ModuleType | None:
    """Import what draws the figures; None if there are none."""
    if not run.config.run.plots or run.targets:
        return None
    from fedstats_app.report.plots import first_stage

    return first_stage


def _draw(run: Run, results: Sequence[MethodResult], chosen: str, scores: Scores) -> None:
    if (plots := _plots(run)) is None:
        return
    plots.write_plots(
        run.folder.path / "plots",
        results,
        class_names=run.class_names,
        confusion_matrices={name: matrix for name, matrix in scores.confusion.items() if name == chosen},
        dataset=without_folders(run.data_name),
        backbone=without_folders(run.config.backbone.backbone),
    )


def _of_clients(strategy: StatisticsStrategy, federation: Federation) -> dict[str, object]:
    """Entries of results.json about who answered what, and what nodes' policies did, in numbers of clients."""
    outcomes = strategy.outcomes
    policy: dict[str, object] = {
        "num_refused": _num_with(outcomes, "refused"),
        "num_with_suppressed_classes": sum(outcome.num_suppressed_classes > 0 for outcome in outcomes),
        "num_warned": sum(bool(outcome.warning) for outcome in outcomes),
    }
    if federation.any_app:
        policy["nodes_running_any_app"] = [str(node) for node in federation.any_app]
    return {
        "num_clients_asked": len(outcomes),
        "num_clients_merged": _num_with(outcomes, "merged"),
        "num_clients_known": _num_with(outcomes, "known"),
        "policy": policy,
        "num_unreadable": sum(outcome.num_unreadable for outcome in outcomes),
        "refused_nodes": {str(node): reason for node, reason in federation.refused.items()},
        "wire_bytes_received": strategy.collection.total_wire_bytes,
    }


def _advice(strategy: StatisticsStrategy, results: Sequence[MethodResult], scores: Scores) -> Advice | None:
    """Choose among the run's methods."""
    candidates = []
    for result in results:
        spec = strategy.methods()[result.method].specification
        sends: Sends = "gram" if spec.gram else "directions" if spec.scatter else "means"
        measure, value = measure_of(result.to_json())
        candidates.append(Candidate(result.method, value, result.wire_bytes, sends))
    if scores.targets:
        return advise(candidates, {}, scores.num_examples, 0.0, measure=measure)
    if not scores.num_examples and (left_out := scores.left_out) is not None:
        accuracies = {name: matrix.accuracy for name, matrix in left_out.confusion.items()}
        scored = [
            replace(candidate, accuracy=accuracies[candidate.method])
            for candidate in candidates
            if candidate.method in accuracies
        ]
        return advise(scored, {}, left_out.num_examples, left_out.chance, LEFT_OUT)
    return advise(candidates, scores.right, scores.num_examples, scores.chance)


def _evidence(run: Run, strategy: StatisticsStrategy) -> dict[str, object] | None:
    """Return the labels' evidence by the Gram matrix, own or completed by FedRoot; None without, or with noise."""
    total, methods = strategy.collection.total, strategy.methods().values()
    if run.config.federation.is_noisy or not strategy.heads or run.targets:
        return None
    if total.has_gram:
        return {"nats": label_evidence(total.shared()), "by": "Gram matrix"}
    completed = (method.inputs(total) for method in methods if Need.SCATTER in method.needs)
    return next(({"nats": label_evidence(found), "by": "FedRoot's directions"} for found in completed), None)


def _num_with(outcomes: Sequence[ClientOutcome], kind: str) -> int:
    return sum(outcome.outcome == kind for outcome in outcomes)


def _save_heads(run: Run, strategy: StatisticsStrategy, scores: Scores) -> None:
    farthest = distance_limit(run, strategy) if scores.evaluated_on else None
    for name, head in strategy.heads.items():
        result = method_result(strategy, name, scores)
        own = head_metadata(result, head.report.deviations)
        if (margins := margins_for_sets(name, scores)) is not None:
            own[LABEL_MARGINS] = margins.to_json()
        if farthest is not None:
            own[DISTANCE_LIMIT] = repr(farthest)
        run.folder.save_head(name, head, {**run.metadata, **own})


def _failures(run: Run, outcomes: Sequence[ClientOutcome], scores: Scores) -> Iterator[str]:
    """List the first failures in words; how many there are is among the warnings at the end."""
    failed = [outcome for outcome in outcomes if not outcome.in_heads]
    for outcome in failed[:_FAILURES_SHOWN]:
        yield f"{run.site(outcome.client)} {outcome.outcome}: {outcome.reason}"
    if len(failed) > _FAILURES_SHOWN:
        yield f"{len(failed)} of {len(outcomes)} sites are not in the heads; all reasons are in clients.jsonl"
    for outcome in itertools.islice((outcome for outcome in outcomes if outcome.waiting), _FAILURES_SHOWN):
        yield f"{run.site(outcome.client)}: {outcome.waiting}"
    for client, reason in itertools.islice(scores.failures.items(), _FAILURES_SHOWN):
        yield f"{run.site(client)} did not evaluate: {reason}"
    if known := _num_with(outcomes, "known"):
        yield f"{known} sites were in the statistics to extend already and are not counted twice"
