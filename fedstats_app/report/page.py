"""A run's page: `report.html` in its folder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from fedstats_app import __version__
from fedstats_app.base.files import write_atomically
from fedstats_app.base.progress import duration
from fedstats_app.data.paths import without_folders
from fedstats_app.report.method_result import measure_of
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import (
    Table,
    classes_table,
    confused_lines,
    head_title,
    heads_table,
    share_cells,
    targets_table,
    trainings_table,
)
from fedstats_app.report.templates import TEMPLATES
from fedstats_app.report.text_columns import area, bytes_with_unit, counted, interval_text, percent, size
from fedstats_app.report.wording import (
    evaluated_on,
    evidence_in_words,
    facts,
    left_out_in_words,
    revealing_sites,
    summary,
    unseen_in_words,
    warnings,
)

REPORT_NAME = "report.html"


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Make `report.html` from the other files of a run folder, by default in it; the run may have failed, or continue.

    Raises
    ------
    FileNotFoundError
        If it is no run folder.
    ValueError
        If a file in it is damaged.
    """
    page = folder / REPORT_NAME if page is None else page
    write_atomically(page, report(RunRecord.read(folder)).encode())
    return page


def report(run: RunRecord) -> str:
    """Render a run's page as HTML that needs no other file and no network; sections without a part are left out."""
    title = f"{run.kind.capitalize()} classifier of {len(run.class_names):,} {run.targets or 'classes'}"
    return page_of(
        title if run.methods else f"Run {run.name}",
        summary(run),
        ((place, heading, list(parts_of(run))) for place, heading, parts_of in _SECTIONS),
        facts=facts(run),
        source="the run folder",
        name=f"{'(simulation) ' if run.is_simulation else ''}{run.name}",
        state=run.status["state"],
        tiles=_tiles(run),
    )


def page_of(
    title: str,
    summary: str,
    sections: Iterable[tuple[str, str, Sequence[str]]],
    *,
    facts: Iterable[tuple[str, str]],
    source: str,
    name: str = "",
    state: str = "",
    tiles: Iterable[tuple[str, str]] = (),
) -> str:
    """Render a page.

    Parameters
    ----------
    title, summary : str
        Its heading, and the paragraph below it.
    sections : iterable
        For each its place, heading and :data:`parts`; those without a part are left out.
    facts : iterable
        Names and values below the summary.
    source : str
        What the page was made from.
    name, state : str
        Of the run, if it is about one.
    tiles : iterable
        Numbers and their meanings.
    """
    return _ENVIRONMENT.get_template("page.html").render(
        title=title,
        summary=summary,
        sections=[section for section in sections if section[-1]],
        facts=facts,
        source=source,
        name=name,
        state=state,
        tiles=tiles,
        version=__version__,
    )


def _unbroken(value: object) -> object:
    """Keep numbers and their units on one line, in whatever a template prints."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return re.sub(r"(\d) (%|bytes|KB|MB|GB|s|min|h)(?![a-z])", "\\1\u00a0\\2", value)


# Names that sites, classes or folders have cannot become markup: everything is escaped.
_ENVIRONMENT = Environment(
    loader=DictLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_unbroken,
)
#: Macros that make HTML: table, figure, note, ...
parts: Any = _ENVIRONMENT.get_template("parts.html").module


def _tiles(run: RunRecord) -> Iterator[tuple[str, str]]:
    if not run.is_scored:
        return
    if run.targets:
        measure, value = measure_of(run.entry)
        yield area(value), f"{measure} of {head_title(run.taken)}"
    else:
        interval = interval_text(run.entry.get("accuracy_interval"))
        yield percent(run.entry["accuracy"]), f"accuracy of {head_title(run.taken)}, {interval} %"
    yield bytes_with_unit(run.sent), f"sent for {head_title(run.taken)} by all sites together"
    yield f"{run.num_merged:,} of {run.results.get('num_clients_asked', 0):,}", "sites are in the result"
    if "seconds" in run.results:
        yield duration(run.results["seconds"]), "from the first site to the scores"


def _warnings(run: RunRecord) -> Iterator[str]:
    if found := warnings(run):
        yield parts.listing(found)


def _table(table: Table) -> Iterator[str]:
    yield parts.table(table.columns, table.rows)
    yield from map(parts.note, table.notes)


def _figure(run: RunRecord, name: str, caption: str) -> Iterator[str]:
    """Show a figure of the run's `plots`, if it was drawn; those that show removed sites are left out."""
    picture = "" if name != "fine_tuning" and "removed" in run.results else run.figure(name)
    if picture:
        yield parts.figure(picture, caption)


def _methods(run: RunRecord) -> Iterator[str]:
    if not run.methods:
        return
    accuracy = "" if run.targets else f"Accuracy is the share of test {run.kind}s that are classified correctly. "
    yield parts.note(
        "Every method is a way to compute the classifier; one pass over the data served all. "
        f"{accuracy}Bytes are those that a method alone would have needed, of trained heads up and down."
    )
    yield from _table(heads_table(run.all_heads, run.num_merged, run.taken))
    yield from map(parts.line, (run.results.get("advice") or {}).get("text", []))
    if left_out := left_out_in_words(run.results.get("leave_one_out"), run.kind):
        yield parts.line(left_out)
    if unseen := run.results.get("unseen_site"):
        yield parts.line(unseen_in_words(unseen, run.kind))
    if evidence := run.results.get("evidence"):
        yield parts.line(evidence_in_words(evidence))
    yield from _figure(run, "accuracy-vs-megabytes", "accuracy against megabytes")


def _classes(run: RunRecord) -> Iterator[str]:
    if not run.is_scored:
        return
    if run.targets:
        table = targets_table(run.entry, run.class_names)
    else:
        table = classes_table(run.entry, _names(run), run.kind)
    if table.rows:
        yield parts.note(f"{head_title(run.taken)} on {evaluated_on(run)}, lowest first, with 95 % intervals.")
        yield from _table(table)


def _names(run: RunRecord) -> list[str]:
    return [run.class_name(index) for index in range(len(run.entry.get("per_class_examples", [])))]


def _confused(run: RunRecord) -> Iterator[str]:
    if lines := confused_lines(run.entry, _names(run)):
        yield parts.note(f"The classes that {head_title(run.taken)} confuses most often.")
        yield from map(parts.line, lines)
        yield from _figure(run, f"confusion-matrix-{run.taken}", f"confusion matrix of {head_title(run.taken)}")


_OUTCOMES = {
    "merged": "in the result",
    "known": "already in the run that this one extends",
    "refused": "refused by its owner's policy",
    "failed": "failed, or did not answer in time",
    "rejected": "answered with something that must not be used",
}


def _sites(run: RunRecord) -> Iterator[str]:
    numbers = Counter(str(client.get("outcome")) for client in run.clients)
    if not numbers:
        return
    rows = [(outcome, meaning, numbers[outcome]) for outcome, meaning in _OUTCOMES.items() if numbers[outcome]]
    yield parts.table({"outcome": "", "meaning": "left", "sites": ""}, rows)
    left_out = [client for client in run.clients if client["outcome"] not in ("merged", "known")]
    out = [(run.site(client["client"]), client["outcome"], client.get("reason", "")) for client in left_out]
    out += [(f"machine {node}", "not asked", why) for node, why in run.results.get("refused_nodes", {}).items()]
    if out:
        yield parts.heading("Left out")
        yield parts.table({"who": "", "outcome": "left", "why": "left"}, out)
    if by_client := (run.entry.get("client_accuracy") or {}).get("by_client", {}):
        yield parts.heading("Accuracy at each site")
        sizes = run.results.get("evaluation_examples") or {}
        yield parts.note(f"{head_title(run.taken)} on what each site kept aside for testing, lowest first.")
        columns = dict.fromkeys(("site", "accuracy", "95 % interval", f"test {run.kind}s"), "")
        found = sorted(by_client.items(), key=itemgetter(1))
        lines = [(run.site(client), *share_cells(share, int(sizes.get(client, 0)))) for client, share in found]
        yield parts.table(columns, lines)


def _trainings(run: RunRecord) -> Iterator[str]:
    if not run.trainings:
        return
    yield parts.note("Bytes are up and down, of all sites, with those of the start.")
    yield from _table(trainings_table(run.trainings))
    yield from _figure(run, "fine_tuning", "accuracy over rounds, bytes and compute")


def _times(run: RunRecord) -> Iterator[str]:
    found = dict(run.results.get("seconds_by_phase") or {})
    found |= {f"training {head_title(training.name)}": training.seconds for training in run.trainings}
    if found:
        yield parts.table({"part": "", "time": ""}, [(name, duration(seconds)) for name, seconds in found.items()])


_MESSAGES = {
    "query.clients": "Who takes part",
    "query.statistics": "Statistics of the features, once",
    "evaluate.heads": "Scores of the heads",
    "query.secure_scores": "Scores of a head, under masks",
    "evaluate.model": "Scores of a model in training",
    "evaluate.mezo": "Scores of a model in training",
    "train.losses": "Losses of a head on training samples",
    "train.mezo": "Slopes of the loss, for training",
}


def _disclosed(run: RunRecord) -> Iterator[str]:
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in run.disclosure:
        kinds[line["message"]].append(line)
    if kinds:
        yield parts.note(
            f"Everything that the server received, {size(sum(int(line['bytes']) for line in run.disclosure))} for all "
            f"methods and trainings of this run together, by kind of message. No {run.kind} is among it. It still "
            f"reveals something: the mean of one {run.kind} is that {run.kind}'s features, and counts tell its classes."
        )
        yield from map(parts.line, revealing_sites(run))
    for message, lines in kinds.items():
        yield parts.heading(
            _MESSAGES.get(message, "Weights, in training" if message.startswith("train") else "Answers")
        )
        sizes = [int(line["bytes"]) for line in lines]
        clients = counted(len({line["client"] for line in lines}), "machine" if message == "query.clients" else "site")
        replies = sum(int(line.get("num_replies", 1)) for line in lines)
        text = (
            f"{message}: {clients}, {replies} answers, {size(sum(sizes))} in all, at most {size(max(sizes))} from one."
        )
        if kept_back := sum(int(line.get("classes_suppressed", 0)) > 0 for line in lines):
            text += f" {kept_back} sites kept classes back."
        if errors := sum(len(line.get("errors", [])) for line in lines):
            text += f" {errors} errors were sent."
        yield parts.line(text)
        if names := dict.fromkeys(field["field"] for line in lines for field in line.get("fields", [])):
            yield parts.note(f"Fields: {', '.join(names)}. Their shapes and bytes are in disclosure.jsonl.")


def _use(run: RunRecord) -> Iterator[str]:
    if not run.methods:
        return
    chosen = run.taken or next(iter(run.methods))
    option = "" if run.taken else f" --method {chosen}"
    in_shell, in_python = ("picture.png", '"picture.png"') if run.kind == "image" else ('--text "a text"', '"a text"')
    yield parts.line(f"In the folder that holds {run.name}, without a server and without network:")
    yield parts.code(f"fedstats predict {run.name}{option} {in_shell}")
    yield parts.code(
        f'import fedstats_app\nclassifier = fedstats_app.load("{run.name}", "{chosen}")\n'
        f"print(classifier.predict({in_python}))"
    )
    if not run.config.get("run_config", {}).get("text-template"):  # texts within a prompt cannot be exported
        yield parts.line("As one ONNX file, which predicts without torch:")
        yield parts.code(f"fedstats export {run.name} --onnx{option}")
    yield parts.line(f"Score it on other labelled {run.kind}s, and make this page again:")
    yield parts.code(f"fedstats evaluate {run.name} FOLDER\nfedstats report {run.name}")


def _settings(run: RunRecord) -> Iterator[str]:
    if not run.config:
        return
    given = run.config.get("run_config", {}).items()
    rows = [
        # Of paths only the last part.
        (key, (str(value).lower() if isinstance(value, bool) else without_folders(str(value))) or "-")
        for key, value in given
    ]
    found = run.config.get("versions", {}).items()
    versions = [(name, version) for name, version in found if version != "not installed"]
    versions.append(("network's fingerprint", run.config["backbone"].get("fingerprint", "-")))
    for title, entries in ((f"{len(rows)} settings", rows), ("versions", versions)):
        yield parts.folded(title, parts.table({"name": "", "value": ""}, entries, len(entries)))


_SECTIONS: tuple[tuple[str, str, Callable[[RunRecord], Iterator[str]]], ...] = (
    ("warnings", "Before you trust it", _warnings),
    ("methods", "Methods", _methods),
    ("classes", "Classes", _classes),
    ("confused", "Most confused", _confused),
    ("sites", "Sites", _sites),
    ("training", "Training from the heads", _trainings),
    ("time", "Time", _times),
    ("left", "What left the sites", _disclosed),
    ("use", "How to use it", _use),
    ("settings", "Settings", _settings),
)
