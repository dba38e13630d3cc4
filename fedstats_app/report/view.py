"""What a run says to people: numbers in words, with units and intervals, which terminal, page and card all print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstats_app.data.paths import without_folders
from fedstats_app.methods import display_name, head_parts, method_order
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.text_columns import (
    area,
    bytes_with_unit,
    counted,
    duration,
    interval_text,
    percent,
    size,
    three_figures,
)

SHOWN_AT_ONCE = 20  # rows; the others are one click away
_PAIRS = 10


@dataclass(frozen=True)
class Share:
    """A share of a number of samples, with Wilson's 95% interval.

    Attributes
    ----------
    name : str
        Whose.
    share, low, high : float
        0 to 1.
    number : int
        Samples.
    """

    name: str
    share: float
    low: float
    high: float
    number: int

    @classmethod
    def of(cls, name: str, share: float, number: int) -> Share:
        """Return it for a share of so many samples, which is one of whole samples up to rounding."""
        return cls(name, share, *wilson_interval(round(share * number), number), number)


def colour_of(method: str) -> int:
    """Return which of the page's colours a method has, everywhere."""
    return method_order(method)


@dataclass(frozen=True)
class MethodView:
    """A closed-form or trained head in words; "-" for what nobody knows.

    Attributes
    ----------
    name, title : str
        As in results.json, and for people.
    accuracy, interval, balanced, f1 : str
        With per cent signs, but the interval.
    auroc : str
        0 to 1.
    each, all : str
        Bytes that one site sent, a mean, and all of them, with their unit.
    megabytes : str
        All of them in units of 10^6 bytes.
    solve, ridge, condition, regulariser : str
        Seconds; what was added to the diagonal in all; the condition number of what was solved; in words.
    advised : bool
        Whether it is the one to take.
    """

    name: str
    title: str
    accuracy: str
    interval: str
    balanced: str
    f1: str
    auroc: str
    each: str
    all: str
    megabytes: str
    solve: str
    ridge: str
    condition: str
    regulariser: str
    advised: bool = False

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any], num_sent: int = 0, *, advised: bool = False) -> MethodView:
        """Return what an entry of results.json says, with the number of sites that sent the bytes."""
        method, stage = head_parts(name)
        # Of a training, results.json has the bytes up and down, its start's included.
        sent, solve = entry.get("wire_bytes", entry.get("bytes")), entry.get("solve_seconds")
        return cls(
            name=name,
            title=display_name(method) + (f", then {stage}" if stage else ""),
            accuracy=percent(entry.get("accuracy")),
            interval=interval_text(entry.get("accuracy_interval")) or "-",
            balanced=percent(entry.get("macro_accuracy")),
            f1=percent(entry.get("macro_f1")),
            auroc=area(entry.get("macro_auroc")),
            each="-" if sent is None or not num_sent else bytes_with_unit(sent / num_sent),
            all="-" if sent is None else bytes_with_unit(sent),
            megabytes="-" if sent is None else three_figures(sent / 1e6),
            solve="-" if solve is None else f"{solve:.2f}",
            ridge="-" if entry.get("ridge_effective") is None else f"{float(entry['ridge_effective']):.3g}",
            condition="-" if entry.get("condition_number") is None else f"{float(entry['condition_number']):.1e}",
            regulariser=entry.get("regulariser") or "-",
            advised=advised,
        )

    @property
    def colour(self) -> int:
        """Which of the page's colours it has, everywhere."""
        return colour_of(self.name)


def method_views(run: RunRecord) -> list[MethodView]:
    """Return a run's closed-form methods, in the order of the tables."""
    sent = int(run.results.get("num_clients_merged", 0))
    return [MethodView.of(name, entry, sent, advised=name == run.advised) for name, entry in run.methods.items()]


def class_shares(run: RunRecord) -> list[Share]:
    """Return the accuracy on each class of the head to take, the worst first."""
    entry = run.methods.get(run.advised, {})
    numbers, shares = entry.get("per_class_examples") or [], entry.get("per_class_accuracy") or []
    found = [
        Share.of(run.class_name(index), share, number)
        for index, (share, number) in enumerate(zip(shares, numbers, strict=False))
        if number and share is not None
    ]
    return sorted(found, key=lambda one: one.share)


def confused(run: RunRecord) -> list[dict[str, Any]]:
    """Return the pairs that the head to take confuses most, with pictures where the server has them."""
    entry = run.methods.get(run.advised, {})
    numbers = entry.get("per_class_examples") or []
    pictures = {(one.true, one.predicted): one.pictures for one in run.examples}
    return [
        {
            "true": run.class_name(true),
            "predicted": run.class_name(predicted),
            "number": number,
            "of": numbers[true] if true < len(numbers) else None,
            "pictures": pictures.get((true, predicted), ()),
        }
        for true, predicted, number in (entry.get("most_confused") or [])[:_PAIRS]
    ]


def figures(run: RunRecord) -> dict[str, str]:
    """Return the figures of `plots` that the page shows, as base64 of PNGs, by section; "" where there is none.

    Those that show sites which were removed since are left out.
    """
    names = {"training": "fine_tuning", "personal": "personal", "labels": "", "methods": "", "confused": ""}
    if "removed" not in run.results:
        names["labels"] = "label-distribution"
        names["methods"] = "accuracy-vs-megabytes" if len(run.scored) > 1 else ""
        names["confused"] = f"confusion-matrix-{run.advised}"
    return {section: run.figure(name) for section, name in names.items()}


def phases(run: RunRecord) -> list[dict[str, Any]]:
    """Return how long each part took."""
    found = dict(run.results.get("seconds_by_phase") or {})
    if not found and run.results.get("seconds"):
        found = {"statistics, solving and evaluation": run.results["seconds"]}
    for one in run.trainings:
        found[f"training {run.title_of(one.name)}"] = one.seconds
    for name, entry in run.results.get("personal", {}).items():
        # Entries of one approach share its time.
        found[f"own models: {entry.get('approach', name)}"] = entry.get("seconds", 0.0)
    longest = max(found.values(), default=0.0) or 1.0
    return [{"name": name, "text": duration(value), "share": value / longest} for name, value in found.items()]


def training_rows(run: RunRecord) -> list[dict[str, str]]:
    """Return the table of the trainings."""
    return [
        {
            "name": run.title_of(one.name),
            "start": percent(one.start_accuracy),
            "final": percent(one.final_accuracy),
            "best": percent(one.best_accuracy),
            "when": "" if one.best_round is None else f"round {one.best_round}",
            "rounds": f"{one.num_rounds:,}",
            "bytes": size(one.cumulative_bytes()[-1]),
            "stopped": one.stopped,
        }
        for one in run.trainings
    ]


def personal_rows(run: RunRecord) -> list[dict[str, str]]:
    """Return the table of the personal models."""
    rows = []
    for name, entry in run.results.get("personal", {}).items():
        one = PersonalResult.from_json(name, entry)
        tested = bool(one.num_test)
        rows.append(
            {
                "name": approach_name(name),
                "mean": percent(one.mean) if tested else "-",
                "deviation": f"{100 * one.std:.1f}" if tested else "-",
                "sites": counted(len(one.num_test), "site"),
                "up": size(one.bytes_up),
                "down": size(one.bytes_down),
            }
        )
    return rows


def settings(run: RunRecord) -> list[tuple[str, str]]:
    """Return every setting of the run, of paths only the last part."""
    return [(key, _setting(value)) for key, value in run.config.get("run_config", {}).items()]


def environment(run: RunRecord) -> list[tuple[str, str]]:
    """Return the versions, and which weights the network had."""
    versions = run.config.get("versions", {})
    backbone = run.config.get("backbone", {})
    found = [(name, str(version)) for name, version in versions.items() if version != "not installed"]
    found += [("network's fingerprint", str(backbone.get("fingerprint", "-")))]
    return found


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return without_folders(str(value)) if value != "" else "-"


def site_shares(run: RunRecord) -> list[Share]:
    """Return the accuracy of the head to take at each site that evaluated, the worst first."""
    spread = run.methods.get(run.advised, {}).get("client_accuracy") or {}
    numbers = run.results.get("evaluation_examples") or {}
    found = [
        Share.of(run.site(client), share, int(numbers[client]))
        if numbers.get(client)
        else Share(run.site(client), share, share, share, 0)
        for client, share in spread.get("by_client", {}).items()
    ]
    return sorted(found, key=lambda one: one.share)


def outcome_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return how many sites ended how, those that count first."""
    numbers: dict[str, int] = defaultdict(int)
    for one in run.clients:
        numbers[one.get("outcome", "?")] += 1
    meanings = {
        "merged": "in the result",
        "known": "already in the run that this one extends",
        "refused": "refused by its owner's policy",
        "failed": "failed, or did not answer in time",
        "rejected": "answered with something that must not be used",
    }
    return [
        {"outcome": outcome, "meaning": meanings.get(outcome, outcome), "number": numbers[outcome]}
        for outcome in sorted(numbers, key=lambda one: list(meanings).index(one) if one in meanings else 9)
    ]


def left_out(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return site, outcome and reason of everyone who is not in the result."""
    sites = [
        (run.site(one["client"]), str(one["outcome"]), str(one.get("reason", "")))
        for one in run.clients
        if one.get("outcome") not in ("merged", "known")
    ]
    return sites + [(f"machine {node}", "not asked", why) for node, why in run.results.get("refused_nodes", {}).items()]


def disclosed(run: RunRecord) -> list[dict[str, Any]]:
    """Return what left the sites, a row per kind of answer: how many sites, how many bytes, which fields."""
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in run.disclosure:
        kinds[str(line.get("message", "?"))].append(line)
    return [_kind(message, lines) for message, lines in kinds.items()]


_MESSAGES = {
    "query.clients": "who takes part",
    "query.statistics": "statistics of the features, once",
    "evaluate.heads": "scores of the heads",
    "evaluate.model": "scores of a model in training",
    "evaluate.mezo": "scores of a model in training",
    "evaluate.personal": "scores of personal heads",
    "train.losses": "losses of a head on training samples",
    "train.mezo": "slopes of the loss, for training",
    "train.personalise": "updates and scores of personal models",
    "train.personal_heads": "scores of personal heads",
    "train.prototypes": "class means, in training",
}


def _kind(message: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sizes = [int(line.get("bytes", 0)) for line in lines]
    fields: dict[str, dict[str, Any]] = {}
    for line in lines:
        for one in line.get("fields", []):
            found = fields.setdefault(one["field"], {"dtype": one["dtype"], "sites": 0, "bytes": 0, "shapes": []})
            found["sites"] += 1
            found["bytes"] += one["bytes"]
            found["shapes"].append(tuple(one["shape"]))
    return {
        "message": message,
        "title": _MESSAGES.get(message, "weights, in training" if message.startswith("train") else "answers"),
        "from": counted(
            len({line.get("client") for line in lines}), "machine" if message == "query.clients" else "site"
        ),
        "replies": sum(int(line.get("num_replies", 1)) for line in lines),
        "all": size(sum(sizes)),
        "most": size(max(sizes)),
        "errors": sum(len(line.get("errors", [])) for line in lines),
        "suppressed": sum(int(line.get("classes_suppressed", 0)) > 0 for line in lines),
        "fields": [
            {
                "name": name,
                "dtype": found["dtype"],
                "sites": found["sites"],
                "shape": _shapes(found["shapes"]),
                "all": size(found["bytes"]),
            }
            for name, found in fields.items()
        ],
    }


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    """Return the shape of a field, with ranges where sites differ: "(1 to 6) x 1280"."""
    found = set(shapes)
    if found == {()}:
        return "one value"
    if len({len(shape) for shape in found}) > 1:
        return "various"
    extents = [(min(sizes), max(sizes)) for sizes in zip(*found, strict=True)]
    return " x ".join(f"{low:,}" if low == high else f"({low:,} to {high:,})" for low, high in extents)
