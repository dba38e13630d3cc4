"""The model card of a run's heads: what they are, how they were made, what they score, what left the sites.

Markdown behind a block of YAML, as the Hugging Face hub reads it, so that the folder `heads` can be shared as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from fedstats_app.backbones.licences import Licence
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import Needs, display_name, head_parts, is_method, record_of
from fedstats_app.report.head_file import SUFFIX, read_head
from fedstats_app.report.method_result import head_to_take
from fedstats_app.report.templates import TEMPLATES
from fedstats_app.report.text_columns import area, bytes_with_unit, percent
from fedstats_app.report.view import MethodView
from fedstats_app.storage.files import write_atomically
from fedstats_app.storage.json_digest import read_json_file

CARD_NAME = "README.md"
_CLASSES_LISTED = 50


def write_model_card(run_folder: Path) -> Path:
    """Write `heads/README.md` from the heads and the results.json of a run folder.

    Parameters
    ----------
    run_folder : Path
        With at least one head.

    Returns
    -------
    Path
        The card.

    Raises
    ------
    FileNotFoundError
        If there is no head or no results.json.
    ValueError
        If a head or results.json is damaged.
    """
    paths = sorted((run_folder / "heads").glob("*.safetensors"))
    heads = {path.stem: read_head(path)[1] for path in paths if not path.name.endswith(SUFFIX)}
    results = run_folder / "results.json"
    if not heads or not results.is_file():
        raise FileNotFoundError(f"{run_folder}: a model card needs results.json and heads, found {len(heads)} heads")
    card = model_card(heads, read_json_file(results))
    path = run_folder / "heads" / CARD_NAME
    write_atomically(path, card.encode())
    return path


def model_card(heads: Mapping[str, Mapping[str, str]], results: Mapping[str, Any]) -> str:
    """Render the card of heads that come from one run.

    Parameters
    ----------
    heads : mapping
        From a head's name to its metadata (:mod:`fedstats_app.report.head_file`); at least one.
    results : mapping
        The content of results.json.

    Returns
    -------
    str
        The card's text.
    """
    first = next(iter(heads.values()))
    found = {**results.get("methods", {}), **results.get("training", {})}
    # Nothing is known of a head that the results do not name.
    scores: dict[str, Mapping[str, Any]] = {name: found.get(name, {}) for name in heads}
    taken = head_to_take(results)
    best = taken if taken in heads else next(iter(heads))
    kind, data = first.get("sample-kind", "image"), without_folders(first.get("dataset", "?"))
    classes: list[str] = json.loads(first.get("class-names", "[]"))
    evaluated_on, trained = _evaluated_on(results, kind), results.get("training", {})
    versions = json.loads(first.get("versions", "{}")).items()
    fitted = {name: score.get("calibration") for name, score in scores.items()}
    return (
        _environment()
        .get_template("card.md")
        .render(
            kind=kind,
            data=data,
            index=[(name, _index_entry(score, kind, data, evaluated_on)) for name, score in _evaluated(scores)],
            classes=classes,
            listed=_CLASSES_LISTED,
            network=_plain(without_folders(first.get("backbone", "?"))),
            input_size=first.get("input-size", "?"),
            features=first.get("backbone-features", ""),
            arguments=first.get("backbone-arguments", ""),
            clients=first.get("num-clients", "?"),
            heads=[MethodView.of(name, score) for name, score in scores.items()],
            best=MethodView.of(best, scores[best]),
            samples=first.get("num-examples", "?"),
            merged=results.get("num_clients_merged", first.get("num-clients", "?")),
            asked=results.get("num_clients_asked", "?"),
            unreadable=results.get("num_unreadable", 0),
            removed=results.get("removed", ""),
            regularisers={name: metadata.get("regulariser", "") for name, metadata in heads.items()},
            numbers={name: metadata.get("num-clients", "?") for name, metadata in heads.items()},
            trained=trained,
            papers=_papers(heads),
            seed=first.get("seed", "?"),
            versions=", ".join(f"{library} {version}" for library, version in versions if version != "not installed"),
            notes=[(name, note) for name in heads for note in trained.get(name, {}).get("notes", [])],
            evaluated_on=evaluated_on,
            by_class=_by_class(scores[best], classes),
            by_client=scores[best].get("client_accuracy"),
            advice=(results.get("advice") or {}).get("text", []),
            curves=[(display_name(name), curve) for name, curve in results.get("curve", {}).items()],
            calibrations=list(fitted.items()),
            interpolated=not all(one.get("exact") for one in fitted.values() if one),
            disclosed=[(name, _disclosed(name, metadata, trained)) for name, metadata in heads.items()],
            on_clients=results.get("evaluated_on") == "clients",
            licence=_licence(first),
        )
    )


def _environment() -> Environment:
    made = Environment(
        loader=DictLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown; names that people chose go through `plain`
    )
    made.filters["plain"] = _plain
    made.globals.update(percent=percent, area=area, bytes_with_unit=bytes_with_unit, row=_row)
    return made


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(value: str) -> str:
    """Keep names that people chose from ending a table's cell, a line or a code span."""
    return "".join(" " if character in "|`\n\r" else character for character in value)


def _evaluated(scores: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((name, score) for name, score in scores.items() if score.get("accuracy") is not None)


def _evaluated_on(results: Mapping[str, Any], kind: str) -> str:
    """Return on which samples the scores are, in words."""
    number = results.get("num_test_examples", 0)
    if not number:
        return "nothing: no test data were there"
    if results.get("evaluated_on") == "clients":
        return f"{number} {kind}s that clients kept for it"
    return f"{number} test {kind}s of the server"


def _index_entry(score: Mapping[str, Any], kind: str, data: str, evaluated_on: str) -> dict[str, Any]:
    """Return what the hub's model index says of a head; JSON is YAML, and quotes whatever a name may hold."""
    return {
        "task": {"type": f"{kind}-classification"},
        "dataset": {"name": f"{data}: {evaluated_on}", "type": data.removeprefix("hub:")},
        "metrics": [{"type": "accuracy", "value": round(score["accuracy"], 6)}],
    }


def _by_class(score: Mapping[str, Any], classes: Sequence[str]) -> list[tuple[str, tuple[float | None, ...], float]]:
    """Return the numbers of each class, where the results have them and classes are not too many."""
    columns = [score.get(f"per_class_{name}") or [] for name in ("accuracy", "specificity", "f1", "auroc")]
    if not all(columns) or len(classes) > _CLASSES_LISTED:
        return []
    return [(name, shares, auroc) for name, *shares, auroc in zip(classes, *columns, strict=True)]  # type: ignore[misc]


def _disclosed(name: str, metadata: Mapping[str, str], trained: Mapping[str, Any]) -> str:
    """Return what every client sent for a head."""
    method = metadata.get("method", name)
    if is_method(method):
        return f"every client sent {_sent(record_of(method).needs)}"
    # Runs of versions that did not write it down lack it.
    sent = trained.get(name, {}).get("sent") or "what `disclosure.jsonl` lists"
    return f"besides the statistics of its start, clients sent {sent}"


def _licence(metadata: Mapping[str, str]) -> Licence | None:
    if "backbone-licence" not in metadata:
        return None
    said = json.loads(metadata["backbone-licence"])
    return Licence(said["name"], said["source"], tuple(said["terms"]))


def _papers(heads: Iterable[str]) -> str:
    """Return the paper of every method that is one of ours, separated by semicolons."""
    methods = (head_parts(name)[0] for name in heads)
    records = {record.name: record for record in (record_of(name) for name in methods if is_method(name))}
    return "; ".join(f"{record.display_name}, {record.paper}" for record in records.values())


def _sent(needs: Needs) -> str:
    """Tell what a client sends for a head, and can give away by it."""
    sums = "the mean of their features (or several such means)" if needs.several_means else "the sum of their features"
    more = ", and one Gram matrix" if needs.gram else ""
    if needs.scatter:
        more = ", and the largest directions of the scatter within its classes"
    return f"for each of its classes the number of samples and {sums}{more}"
