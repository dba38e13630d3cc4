"""What each section of a report shows, as plain values for its template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedstats_app.data.paths import without_folders
from fedstats_app.methods import display_name, method_order
from fedstats_app.report.charts import Chart, Line, Mark, charts
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.tables import approach_name
from fedstats_app.report.text_columns import bytes_with_unit
from fedstats_app.report.wording import counted, duration, interval_text, percent, size

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


def method_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return the table of the methods."""
    sent = int(run.results.get("num_clients_merged", 0))
    return [
        {
            "name": display_name(name),
            "colour": colour_of(name),
            "advised": name == run.advised,
            "accuracy": percent(entry.get("accuracy")),
            "interval": interval_text(entry.get("accuracy_interval")),
            "balanced": percent(entry.get("macro_accuracy")),
            "f1": percent(entry.get("macro_f1")),
            "auroc": "-" if entry.get("macro_auroc") is None else f"{entry['macro_auroc']:.3f}",
            "each": bytes_with_unit(entry["wire_bytes"] / sent) if sent else "-",
            "all": bytes_with_unit(entry["wire_bytes"]),
            "solve": duration(entry["solve_seconds"]),
            "regulariser": entry.get("regulariser") or "-",
        }
        for name, entry in run.methods.items()
    ]


def accuracy_charts(run: RunRecord) -> dict[str, Chart]:
    """Return accuracy against megabytes; empty without two methods to compare."""
    marks = [
        Mark(
            entry["wire_bytes"] / 1e6,
            entry["accuracy"],
            colour_of(name),
            display_name(name),
            f"{display_name(name)}: {percent(entry['accuracy'])}, {bytes_with_unit(entry['wire_bytes'])}",
        )
        for name, entry in run.scored.items()
        if entry["wire_bytes"] > 0
    ]
    if len(marks) < 2:
        return {}
    lines = []
    for name, curve in (run.results.get("curve") or {}).items():
        points = [(point["wire_bytes"] / 1e6, point["accuracy"]) for point in curve if point["wire_bytes"] > 0]
        if len(points) > 1 and name in run.scored:
            lines.append(Line(sorted(points), colour_of(name)))
    return charts(marks, lines, x_title="sent by all sites together (MB, log scale)", logarithmic=True)


def curve_names(run: RunRecord) -> str:
    """Return whose lines the chart of accuracy against megabytes has."""
    return ", ".join(display_name(name) for name in run.results.get("curve") or {} if name in run.scored)


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


def training_charts(run: RunRecord) -> dict[str, Chart]:
    """Return accuracy over the rounds; empty without two evaluations of one training."""
    lines, marks = [], []
    for one in run.trainings:
        points = [(float(item.round), item.accuracy) for item in one.rounds if item.accuracy is not None]
        if len(points) > 1:
            colour = colour_of(one.start)
            lines.append(Line(points, colour))
            marks.append(Mark(*points[-1], colour, "", f"{run.title_of(one.name)}: {percent(points[-1][1])}"))
    return charts(marks, lines, x_title="round", logarithmic=False) if lines else {}


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
