"""The tables of a run, the same in the terminal and on its page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fedstats_app.base.progress import duration
from fedstats_app.methods import display_name, head_parts
from fedstats_app.report.method_result import wilson_interval
from fedstats_app.report.text_columns import (
    GAP,
    WIDTH,
    aligned,
    area,
    bytes_with_unit,
    cut,
    interval_text,
    percent,
    size,
)
from fedstats_app.report.training_record import TrainingResult

_LONGEST_CELL = 40
# Of classes that are confused.
_PAIRS = 10


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Attributes
    ----------
    columns : mapping
        From heading to look, in words of the page's style sheet: "left" for text, "minor" for columns that are left out
        on a phone and in the terminal.
    rows : sequence of tuple of str
    notes : sequence of str
        Sentences below it.
    """

    columns: Mapping[str, str]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        """Lay the table out for a terminal, between lines of hyphens, with at most 120 columns."""
        shown = [index for index, look in enumerate(self.columns.values()) if "minor" not in look]
        lines = [[cut(line[index], _LONGEST_CELL) for index in shown] for line in (tuple(self.columns), *self.rows)]
        looks = list(self.columns.values())
        left = {place for place, index in enumerate(shown) if index == 0 or "left" in looks[index]}
        head, *body = aligned(lines, left)
        rule = "-" * max(map(len, [head, *body]))
        wrapped = [line for note in self.notes for line in textwrap.wrap(note, WIDTH, subsequent_indent=GAP)]
        return "\n".join([rule, head, rule, *body, rule, *wrapped])


def head_title(name: str) -> str:
    """Return a head's name as people write it: "Fed3R", "Fed3R, then probe"."""
    method, stage = head_parts(name)
    return display_name(method) + (f", then {stage}" if stage else "")


@dataclass(frozen=True)
class _Measure:
    """A column of a table of heads: key of an entry in results.json, format, and look as in :class:`Table`."""

    key: str
    text: Callable[[Any], str]
    look: str = ""


# By kind of targets; "" is of one class a sample.
_MEASURES = {
    "": {
        "accuracy": _Measure("accuracy", percent),
        "95 % interval": _Measure("accuracy_interval", interval_text),
        "by person": _Measure("person_accuracy", percent),
        "balanced": _Measure("macro_accuracy", percent, "minor"),
        "macro F1": _Measure("macro_f1", percent, "minor"),
        "AUROC": _Measure("macro_auroc", area, "minor"),
    },
    "labels": {
        "mean average precision": _Measure("mean_average_precision", area),
        "mean AUROC": _Measure("mean_auroc", area),
        "micro F1": _Measure("micro_f1", area),
        "macro F1": _Measure("mean_f1", area),
    },
    "numbers": {
        "R2": _Measure("mean_r2", area),
        "mean absolute error": _Measure("mean_absolute_error", area),
        "within 90 % interval": _Measure("mean_within_interval", area),
    },
}


def heads_table(entries: Mapping[str, Mapping[str, Any]], num_sent: int, taken: str = "") -> Table:
    """Lay out one line per head: how good it is, what sites sent for it, how it was made; notes on those not taken.

    Parameters
    ----------
    entries : mapping
        From a head's name to its entry in results.json. Bytes of a trained head are up and down, its start's included.
    num_sent : int
        Sites that sent the bytes.
    taken : str
        The head to take, which is marked.
    """
    kind = next((entry["targets"]["kind"] for entry in entries.values() if entry.get("targets")), "")
    measures = dict(_MEASURES[kind])
    if all(entry.get("person_accuracy") is None for entry in entries.values()):
        measures.pop("by person", None)
    rows, notes = [], []
    for name, entry in entries.items():
        found, sent = (entry.get("targets") or {}) if kind else entry, entry.get("wire_bytes", entry.get("bytes"))
        rows.append(
            (
                head_title(name) + (" (take this)" if name == taken else ""),
                *(measure.text(found.get(measure.key)) for measure in measures.values()),
                "-" if sent is None or not num_sent else bytes_with_unit(sent / num_sent),
                "-" if sent is None else bytes_with_unit(sent),
                entry.get("regulariser") or "-",
            )
        )
        notes += [f"{head_title(name)}: {note}" for note in entry.get("notes", []) if name != taken]
    columns = {"method": "", **{heading: measure.look for heading, measure in measures.items()}}
    columns |= {"each site sends": "", "all sites send": "", "regulariser": "left minor"}
    return Table(columns, rows, notes)


def share_cells(share: float, number: int) -> tuple[str, str, str]:
    """Write an accuracy on some samples, Wilson's 95 % interval and the number of samples."""
    # A share is one of whole samples, up to rounding.
    interval = interval_text(wilson_interval(round(share * number), number) if number else None)
    return percent(share, 1), interval, f"{number:,}" if number else "-"


def classes_table(entry: Mapping[str, Any], names: Sequence[str], kind: str) -> Table:
    """Lay out one line per class of which there were test samples, the lowest accuracy first."""
    measures = ("accuracy", "examples", "specificity", "f1", "auroc")
    by_class = zip(*(entry.get(f"per_class_{measure}", []) for measure in measures), names, strict=False)
    rows = [
        (name, *share_cells(share, number), percent(specificity, 1), percent(f1, 1), area(auroc))
        for share, number, specificity, f1, auroc, name in sorted(filter(itemgetter(1), by_class), key=itemgetter(0))
    ]
    columns = ("class", "accuracy", "95 % interval", f"test {kind}s", "specificity", "F1", "AUROC")
    return Table(dict.fromkeys(columns, ""), rows)


def confused_lines(entry: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Name the classes that a head confuses most often."""
    pairs, numbers = entry.get("most_confused", [])[:_PAIRS], entry.get("per_class_examples", [])
    return [f"{names[true]} taken for {names[other]}: {number} of {numbers[true]}" for true, other, number in pairs]


def targets_table(entry: Mapping[str, Any], names: Sequence[str]) -> Table:
    """Lay out one line per label or number of a head, the worst first, with 95 % intervals."""
    found = entry["targets"]
    if found["kind"] == "numbers":
        first, columns = "r2", ("number", "samples", "R2", "mean absolute error", "within 90 % interval")
        parts = [[*map(area, found[f"per_target_{key}"])] for key in ("r2", "mean_absolute_error", "within_interval")]
    else:
        first, columns = "average_precision", ("label", "positive samples", "average precision", "AUROC", "F1")
        parts = [
            [
                area(value) + (f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else "")
                for value, bounds in zip(found[f"per_target_{name}"], found[f"per_target_{name}_interval"], strict=True)
            ]
            for name in ("average_precision", "auroc")
        ]
        parts.append([*map(area, found["per_target_f1"])])
    examples = (f"{number:,}" for number in found["per_target_examples"])
    by_target = zip(found[f"per_target_{first}"], names, examples, *parts, strict=True)
    rows = sorted(by_target, key=lambda row: -1.0 if row[0] is None else row[0])
    return Table(dict.fromkeys(columns, ""), [row[1:] for row in rows])


def trainings_table(results: Iterable[TrainingResult]) -> Table:
    """Lay out one line per training; bytes are up and down, of all clients, with those of the start."""
    columns = {"training": "", "start": "", "end": "", "best": "minor", "best round": "minor", "rounds": ""}
    rows = [
        (
            head_title(result.name),
            *map(percent, (result.start_accuracy, result.final_accuracy, result.best_accuracy)),
            "-" if result.best_round is None else f"{result.best_round:,}",
            f"{result.num_rounds:,}",
            size(result.cumulative_bytes()[-1]),
            duration(result.seconds),
            result.stopped,
        )
        for result in results
    ]
    notes = [f"{head_title(result.name)}: {note}" for result in results for note in result.notes]
    return Table({**columns, "bytes": "", "time": "", "ended by": "left minor"}, rows, notes)
