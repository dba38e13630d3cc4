"""Model card of a run's heads: data, training, scores, and the data that left the sites.

Markdown behind a block of YAML, as the Hugging Face hub reads it, so that the folder `heads` can be shared as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from fedstats_app.base.files import write_atomically
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import Need, head_parts, is_method, method_type
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import heads_table
from fedstats_app.report.templates import TEMPLATES
from fedstats_app.report.text_columns import area, percent
from fedstats_app.report.wording import left_out_in_words, privacy_in_words

CARD_NAME = "README.md"
_CLASSES_LISTED = 50


def write_model_card(run_folder: Path) -> Path:
    """Write `heads/README.md` from the heads, at least one, and the results.json of a run folder.

    Raises
    ------
    FileNotFoundError
        If there is no head or no results.json.
    ValueError
        If a file is damaged.
    """
    run = RunRecord.read(run_folder)
    if not run.heads or not run.results:
        raise FileNotFoundError(
            f"{run_folder}: a model card needs results.json and heads, found {len(run.heads)} heads"
        )
    path = run_folder / "heads" / CARD_NAME
    write_atomically(path, model_card(run).encode())
    return path


def model_card(run: RunRecord) -> str:
    """Render the card of a run's heads, of which there is at least one."""
    results, kind = run.results, run.kind
    usual = dict.fromkeys(("backbone", "dataset", "input-size", "num-clients", "num-examples", "seed"), "?")
    first = {**usual, **next(iter(run.heads.values()))}
    # Nothing is known of a head that the results do not name.
    scores: dict[str, Mapping[str, Any]] = {name: run.all_heads.get(name, {}) for name in run.heads}
    best = run.taken if run.taken in run.heads else next(iter(run.heads))
    data = without_folders(first["dataset"])
    classes: list[str] = json.loads(first.get("class-names", "[]"))
    evaluated_on = _evaluated_on(results, kind)
    versions = json.loads(first.get("versions", "{}")).items()
    fitted = {name: score.get("calibration") for name, score in scores.items()}
    trained = results.get("training", {})
    disclosed = [f"`{name}`: {_disclosed(name, metadata, trained)}." for name, metadata in run.heads.items()]
    promise = results.get("differential_privacy")
    noise = privacy_in_words(promise) if isinstance(promise, Mapping) else ""
    if noise:
        disclosed = ["noisy sums of all sites together, and no site's part of them."]
    if results.get("evaluated_on") == "clients":
        disclosed.append(_EVALUATED_ON_CLIENTS.format(kind=kind))
    table = heads_table(scores, run.num_merged)
    left_out = left_out_in_words(results.get("leave_one_out"), kind)
    text = _TEMPLATE.render(
        kind=kind,
        simulated=run.is_simulation,
        data=data,
        index=[
            {"name": name, "results": [_index_entry(score, kind, data, evaluated_on)]}
            for name, score in scores.items()
            if score.get("accuracy") is not None
        ],
        classes=classes,
        listed=_CLASSES_LISTED,
        network=_plain(without_folders(first["backbone"])),
        head=first,
        clients=first["num-clients"],
        unreadable=results.get("num_unreadable", 0),
        results=results,
        best=best,
        columns=["head", *table.columns],
        heads=[(f"`{name}`", *map(_plain, row)) for name, row in zip(scores, table.rows, strict=True)],
        papers=_papers(run.heads),
        versions=", ".join(f"{library} {version}" for library, version in versions if version != "not installed"),
        notes=[f"`{name}`: {_plain(note)}." for name in run.heads for note in trained.get(name, {}).get("notes", [])],
        evaluated_on=evaluated_on,
        by_class=_by_class(scores[best], classes),
        by_client=scores[best].get("client_accuracy"),
        advice=[*(results.get("advice") or {}).get("text", []), *filter(None, [left_out])],
        calibrations=[(f"`{name}`", *_calibrated(calibration)) for name, calibration in fitted.items()],
        disclosed=disclosed,
        noise=noise,
        licence=first.get("backbone-licence"),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


_EVALUATED_ON_CLIENTS = (
    "Evaluation: every site sent how often it saw which class taken for which, histograms of the scores' margins by "
    "class, and the temperature that suits its {kind}s."
)


def _table(heading: str, rows: Iterable[Sequence[str]]) -> str:
    rule = " | ".join("---" for _ in heading.split(" | "))
    lines = [heading, rule, *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _listing(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _plain(value: str) -> str:
    """Keep names that people chose from ending a table's cell, a line or a code span."""
    return "".join(" " if character in "|`\n\r" else character for character in value)


def _escaped(name: str) -> str:
    """Keep a class's name from being Markdown or HTML: links, images, tags, emphasis."""
    return re.sub(r"([\\`*_\[\]<>#!~&$])", r"\\\1", _plain(name))


def _calibrated(fitted: Mapping[str, Any] | None) -> tuple[str, ...]:
    if fitted is None:
        return "not calibrated", "-", "-", "-"
    chosen = f"{fitted['temperature']:.4g}", f"{fitted['num_examples']} {fitted['fitted_on']}"
    if fitted["nll_before"] is None:
        return *chosen, "-", "-"
    return *chosen, *(f"{fitted[f'{name}_before']:.3f} -> {fitted[f'{name}_after']:.3f}" for name in ("nll", "ece"))


def _evaluated_on(results: Mapping[str, Any], kind: str) -> str:
    """Return on which samples the scores are, in words."""
    if not (number := results.get("num_test_examples", 0)):
        return "nothing: no test data were there"
    on_clients = results.get("evaluated_on") == "clients"
    return f"{number} {kind}s that sites kept for it" if on_clients else f"{number} test {kind}s of the server"


def _index_entry(score: Mapping[str, Any], kind: str, data: str, evaluated_on: str) -> dict[str, Any]:
    """Return a head's entry of the hub's model index; JSON is YAML, and quotes any name."""
    return {
        "task": {"type": f"{kind}-classification"},
        "dataset": {"name": f"{data}: {evaluated_on}", "type": data.removeprefix("hub:")},
        "metrics": [{"type": "accuracy", "value": round(score["accuracy"], 6)}],
    }


def _by_class(score: Mapping[str, Any], classes: Sequence[str]) -> list[tuple[str, ...]]:
    """Lay out the numbers of each class, if the results have them and classes are not too many."""
    columns = [score.get(f"per_class_{name}") or [] for name in ("accuracy", "specificity", "f1", "auroc")]
    if not all(columns) or len(classes) > _CLASSES_LISTED:
        return []
    rows = zip(classes, *columns, strict=True)
    return [(_escaped(name), *(percent(share, 1) for share in shares), area(auroc)) for name, *shares, auroc in rows]


def _disclosed(name: str, metadata: Mapping[str, str], trained: Mapping[str, Any]) -> str:
    """Return what every client sent for a head."""
    method = metadata.get("method", name)
    if is_method(method):
        return f"every site sent {_sent(method_type(method).needs)}"
    sent = trained.get(name, {}).get("sent", "what `disclosure.jsonl` lists")
    return f"besides the statistics of its start, sites sent {sent}"


def _papers(heads: Iterable[str]) -> str:
    """Return the paper of every method that is one of ours, separated by semicolons."""
    methods = (head_parts(name)[0] for name in heads)
    records = {record.name: record for record in (method_type(name) for name in methods if is_method(name))}
    return "; ".join(f"{record.display_name}, {record.paper}" for record in records.values())


def _sent(needs: frozenset[Need]) -> str:
    """Describe what a client sends for a head."""
    several = Need.SEVERAL_MEANS in needs
    sums = "the mean of their features (or several such means)" if several else "the sum of their features"
    more = ", and one Gram matrix" if Need.GRAM in needs else ""
    if Need.SCATTER in needs:
        more = ", and the largest directions of the scatter within its classes"
    return f"for each of its classes the number of samples and {sums}{more}"


_ENVIRONMENT = Environment(
    loader=DictLoader(TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # Markdown; names that people chose go through `plain`
)
_ENVIRONMENT.filters.update(plain=_plain, escaped=_escaped)
_ENVIRONMENT.globals.update(percent=percent, table=_table, listing=_listing)
_TEMPLATE = _ENVIRONMENT.get_template("card.md")
