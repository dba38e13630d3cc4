"""A run in plain words: the paragraph at the top of its report, and the warnings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fedstats_app.base.listing import first_few
from fedstats_app.base.progress import duration
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import Need, display_name, head_parts, is_method, method_type
from fedstats_app.report.method_result import measure_of
from fedstats_app.report.run_folder import can_resume
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import head_title
from fedstats_app.report.text_columns import area, bytes_with_unit, counted, interval_text, percent

# With fewer test samples of a class its interval spans about 30 points and more.
FEW_SAMPLES = 30
# Leave-one-out accuracy above the interval of a test accuracy, or one at other sites below it; in one population the
# former is at most 0.02.
FAR_ABOVE = 0.05
_NAMED = 3
# In results.json and for people.
NO_NOISE = "none"


def summary(run: RunRecord) -> str:
    """Summarise a run in one paragraph without technical terms, for a reader who has to decide."""
    if not run.methods:
        return "This run has no results" + (f": {run.status['reason']}" if run.status.get("reason") else ".")
    simulated = ["This is a simulation on one machine."] if run.is_simulation else []
    return " ".join([*simulated, _task(run), *_result(run), _cost(run)])


def _task(run: RunRecord) -> str:
    num_asked = int(run.results.get("num_clients_asked", 0))
    sites = (
        counted(num_asked, "site")
        if run.num_merged == num_asked
        else f"{run.num_merged:,} of {counted(num_asked, 'site')}"
    )
    what_for = f"tells {len(run.class_names):,} kinds of {run.kind}s apart"
    if run.targets:
        predicted = "says which of" if run.targets == "labels" else "predicts"
        what_for = f"{predicted} {len(run.class_names):,} {run.targets} of {run.kind}s"
    return (
        f"This classifier {what_for} ({first_few(run.class_names, _NAMED)}). It "
        f"was made from the data of {sites}, of which no {run.kind} leaves its site: each site sends summary numbers, "
        "once, and the server computes the classifier from them."
    )


def _result(run: RunRecord) -> Iterator[str]:
    if run.taken:
        yield f"The head to take is {head_title(run.taken)}."
    if not run.is_scored:
        unknown = "Nothing has been evaluated, so how good it is remains to be seen."
        yield left_out_in_words(run.results.get("leave_one_out"), run.kind) or unknown
        return
    if run.targets:
        measure, value = measure_of(run.entry)
        yield f"Its {measure} on {evaluated_on(run)} is {area(value)}."
        return
    bounds = run.entry.get("accuracy_interval")
    interval = f", and with 95 % confidence on {interval_text(bounds)} % of all such" if bounds else ""
    yield f"It is right on {percent(run.entry['accuracy'])} of {evaluated_on(run)}{interval}."
    if (by_person := run.entry.get("person_accuracy")) is not None:
        yield (
            f"Of one person's {run.kind}s it is right on {percent(by_person)}, the mean over "
            f"{counted(run.entry['num_persons'], 'person')}."
        )


def evaluated_on(run: RunRecord) -> str:
    """Return on which samples the scores of a run are, in words."""
    where = "of the server" if run.results.get("evaluated_on") == "server" else "that the sites kept aside for it"
    return f"{run.results.get('num_test_examples', 0):,} test {run.kind}s {where}"


def left_out_in_words(entry: Mapping[str, Any] | None, kind: str) -> str:
    """Return the entry `leave_one_out` of results.json in a sentence; "" for none."""
    if not entry:
        return ""
    right = f"{percent(entry['accuracy'])} of {entry['num_examples']:,} training {kind}s of the sites"
    return f"{head_title(entry['method'])} is right on {right}, each left out of it in turn (leave-one-out)."


def unseen_in_words(entry: Mapping[str, Any], kind: str) -> str:
    """Return the entry `unseen_site` of results.json in a sentence."""
    head, number = head_title(entry["method"]), counted(entry["num_examples"], kind)
    of_sites = f"{number} of {counted(entry['num_clients'], 'site')}, each judged by the head of all others"
    if "mean" not in entry:
        return (
            f"At a site that it has not seen, {head} has a {entry['measure']} of {area(entry['value'])} ({of_sites})."
        )
    worst = f"worst {percent(entry['minimum'])}, {entry['worst']}"
    return f"At a site that it has not seen, {head} is right on {percent(entry['mean'])} ({worst}; {of_sites})."


def _cost(run: RunRecord) -> str:
    seconds = run.results.get("seconds")
    took = f" The computation took {duration(seconds)}." if seconds else ""
    if not run.sent or not run.num_merged:
        return took.strip()
    each = bytes_with_unit(run.sent / run.num_merged)
    return f"For this head, all sites together sent {bytes_with_unit(run.sent)}, {each} each on average.{took}"


def warnings(run: RunRecord) -> list[str]:
    """Warnings for who takes the recommended head, most serious first: its weak classes, then what it rests on."""
    method = head_parts(run.taken)[0]
    notes = [f"{display_name(method)}: {note}" for note in run.methods.get(method, {}).get("notes", [])]
    sends_more = is_method(method) and method_type(method).needs & {Need.GRAM, Need.SCATTER}
    revealed = revealing_sites(run) if sends_more else []
    return [*_about_run(run), *_about_evaluation(run), *notes, *_about_sites(run), *revealed, *_about_training(run)]


def _about_run(run: RunRecord) -> Iterator[str]:
    state, reason = run.status.get("state"), run.status.get("reason", "")
    how = f"the same settings with resume, and the path of {run.name}, continue it"
    if not can_resume(run.config.get("run_config", {})):
        how = "with secure sums or noise it cannot be continued, and the same settings begin anew"
    if state == "failed":
        yield (
            f"The run failed: {reason}. Change what this names; fedstats check finds other wrong settings. After any "
            f"other failure {how}."
        )
    elif state == "stopped":
        yield f"The run was stopped ({reason}): {how}."
    elif state != "completed":
        yield "The run had not ended when this page was made; what it had not reached is missing."
    if removed := run.results.get("removed"):
        yield f"These heads were solved again ({removed}), and have not been evaluated since."


def _about_evaluation(run: RunRecord) -> Iterator[str]:
    if (run.results.get("advice") or {}).get("at_chance"):
        yield "No method is better than always naming the most frequent class, as far as the test data can tell."
    entry = run.entry
    yield from _weak_classes(run, entry)
    left_out = run.results.get("leave_one_out") or {}
    bounds = run.methods.get(left_out.get("method", ""), {}).get("accuracy_interval")
    if bounds and left_out["accuracy"] > bounds[1] + FAR_ABOVE:
        yield (
            f"Of the sites' training {run.kind}s, each left out of it in turn, {head_title(left_out['method'])} is "
            f"right on {percent(left_out['accuracy'])}, of test {run.kind}s on {interval_text(bounds)} %: the former "
            "are near copies of each other, or the latter come from elsewhere."
        )
    unseen = run.results.get("unseen_site") or {}
    bounds = run.methods.get(unseen.get("method", ""), {}).get("accuracy_interval")
    if bounds and unseen.get("mean", 1.0) < bounds[0] - FAR_ABOVE:
        yield (
            f"Sites differ: at one that it has not seen, {head_title(unseen['method'])} is right on "
            f"{percent(unseen['mean'])} on average. A new site should expect that, not {interval_text(bounds)} %."
        )
    yield from (f"The data: {doubt}." for doubt in run.config.get("data_doubts", []))
    examples = list(enumerate(entry.get("per_class_examples") or []))
    few = [_class(run, index) for index, number in examples if 0 < number < FEW_SAMPLES]
    none = [_class(run, index) for index, number in examples if number == 0]
    if none:
        names = first_few(none, _NAMED)
        yield f"No test {run.kind} is of {names}: how well such {run.kind}s are recognised is not known."
    if few:
        yield (
            f"There are fewer than {FEW_SAMPLES} test {run.kind}s of {first_few(few, _NAMED)}: read the intervals, not "
            "the percentages."
        )
    if failures := run.results.get("evaluation_failures"):
        yield f"{counted(len(failures), 'site')} did not evaluate, such as {_first(failures)}"
    if unreadable := run.results.get("num_test_unreadable"):
        yield f"{unreadable:,} test {run.kind}s could not be read and are not in the accuracy."


def _weak_classes(run: RunRecord, entry: Mapping[str, Any]) -> Iterator[str]:
    """Name classes whose accuracy is 20 points below that of all, the worst first."""
    numbers = entry.get("per_class_examples") or []
    found = zip(entry.get("per_class_accuracy") or [], numbers, strict=False)
    limit = (entry.get("accuracy") or 0.0) - 0.2
    weak = [(share, index) for index, (share, number) in enumerate(found) if number and share < limit]
    for share, index in sorted(weak)[:_NAMED]:
        taken = [pair for pair in entry.get("most_confused", []) if pair[0] == index][:1]
        called = [f"; {number} of {numbers[index]} are called {_class(run, other)}" for _, other, number in taken]
        yield f"{_class(run, index)} is found in only {percent(share)} of its test {run.kind}s{''.join(called)}."
    if (more := len(weak) - _NAMED) > 0:
        yield f"The same holds for {more:,} more of the {len(numbers):,} classes."


def _about_sites(run: RunRecord) -> Iterator[str]:
    out = [client for client in run.clients if client.get("outcome") not in ("merged", "known")]
    if out:
        yield (
            f"{counted(len(out), 'site')} of {len(run.clients):,} {'is' if len(out) == 1 else 'are'} not in the "
            "result; why is listed below."
        )
    if refused := run.results.get("refused_nodes"):
        yield f"{counted(len(refused), 'machine')} could not take part, such as {_first(refused)}"
    yield from run.results.get("influential_clients", [])
    policy = run.results.get("policy") or {}
    if suppressed := policy.get("num_with_suppressed_classes"):
        yield f"{counted(suppressed, 'site')} withheld classes with few {run.kind}s, to protect them."
    if open_nodes := policy.get("nodes_running_any_app"):
        yield f"{counted(len(open_nodes), 'machine')} run any program that the server sends: no policy binds them."
    if unreadable := run.results.get("num_unreadable"):
        yield f"{unreadable:,} {run.kind}s of the sites could not be read and were left out."


def revealing_sites(run: RunRecord) -> list[str]:
    """Warnings for owners of sites whose Gram matrix or scatter comes close to their samples."""
    alike: dict[str, list[str]] = defaultdict(list)
    for client in run.clients:
        if warning := client.get("warning"):
            alike[re.sub(r"[\d.,]+", "#", warning)].append(f"{run.site(client['client'])}: {warning}")
    return [
        f"{len(sites):,} of {counted(len(run.clients), 'site')} got a warning, such as {sites[0]}."
        for sites in alike.values()
    ]


def _about_training(run: RunRecord) -> Iterator[str]:
    for training in run.trainings:
        start, final = training.start_accuracy, training.final_accuracy
        _, most = training.quality.get("accuracy_interval") or (final, final)
        if start is not None and most is not None and most < start:  # else it can be chance
            yield (
                f"Training made {head_title(training.name)} worse: from {percent(start)} to {percent(final)}. "
                f"The head of {display_name(training.start)} before it is the better one."
            )


def _class(run: RunRecord, index: int) -> str:
    """Return a class's name; in a sentence a number alone would be taken for a count."""
    name = run.class_name(index)
    return f"class {name}" if name.isdecimal() else name


def _first(reasons: Mapping[str, str]) -> str:
    who, reason = next(iter(reasons.items()))
    return f"{who}: {reason}"


def privacy_in_words(promise: object) -> str:
    """Return the entry `differential_privacy` of results.json in one line: "none", or epsilon, delta and the unit."""
    if not isinstance(promise, Mapping):
        return NO_NOISE
    number, most = f"{promise['num_samples']:,}", promise.get("per_person")
    unit = f"for one {promise['unit']} more or less {f'with at most {most} ' if most else ''}of {number} (declared)"
    return f"epsilon {promise['epsilon']:g}, delta {promise['delta']:.2g}, {unit}; noise: {promise['noise']}"


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """Date, data and network of a run, by name."""
    started = str(run.status.get("started", ""))
    return [
        ("date", started.replace("T", " ").removesuffix("Z") + " UTC" if started else "-"),
        ("data", without_folders(str(run.config.get("data", "-")))),
        ("network", without_folders(str(run.config.get("backbone", {}).get("name", "-")))),
        ("classes", f"{len(run.class_names):,}" if run.class_names else "-"),
        ("sites", f"{run.config['num_clients']:,}" if "num_clients" in run.config else "-"),
        ("differential privacy", privacy_in_words(run.results.get("differential_privacy"))),
    ]


def evidence_in_words(evidence: Mapping[str, Any]) -> str:
    """Return the evidence of the labels in results.json, and what it is, in one sentence."""
    return (
        f"evidence {evidence['nats']:.4f} ({evidence['by']}): how likely the labels are under ridge regression on the "
        "features; on the same samples, the network with more is the better one"
    )
