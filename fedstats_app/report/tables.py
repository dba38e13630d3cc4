"""The tables of a run, the same in the terminal and on its page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedstats_app.base.progress import duration
from fedstats_app.methods import display_name, head_parts
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
    if any(entry.get("targets") for entry in entries.values()):
        return _targets_table(entries, num_sent, taken)
    others = {name: entry.get("notes", []) for name, entry in entries.items() if name != taken}
    notes = [f"{head_title(name)}: {note}" for name, found in others.items() for note in found]
    by_person = any(entry.get("person_accuracy") is not None for entry in entries.values())
    columns = {"method": "", "accuracy": "", "95 % interval": "", **({"by person": ""} if by_person else {})}
    columns |= {"balanced": "minor", "macro F1": "minor", "AUROC": "minor", "each site sends": "", "all sites send": ""}
    rows = []
    for name, entry in entries.items():
        sent = entry.get("wire_bytes", entry.get("bytes"))
        rows.append(
            (
                head_title(name) + (" (take this)" if name == taken else ""),
                percent(entry.get("accuracy")),
                interval_text(entry.get("accuracy_interval")) or "-",
                *([percent(entry.get("person_accuracy"))] if by_person else []),
                percent(entry.get("macro_accuracy")),
                percent(entry.get("macro_f1")),
                area(entry.get("macro_auroc")),
                "-" if sent is None or not num_sent else bytes_with_unit(sent / num_sent),
                "-" if sent is None else bytes_with_unit(sent),
                entry.get("regulariser") or "-",
            )
        )
    return Table({**columns, "regulariser": "left minor"}, rows, notes)


_TARGET_COLUMNS = {
    "labels": {
        "mean average precision": "mean_average_precision",
        "mean AUROC": "mean_auroc",
        "micro F1": "micro_f1",
        "macro F1": "mean_f1",
    },
    "numbers": {
        "R2": "mean_r2",
        "mean absolute error": "mean_absolute_error",
        "within 90 % interval": "mean_within_interval",
    },
}


def _targets_table(entries: Mapping[str, Mapping[str, Any]], num_sent: int, taken: str) -> Table:
    """Lay out one line per head of several labels or numbers."""
    found = {name: entry["targets"] for name, entry in entries.items() if entry.get("targets")}
    measures = _TARGET_COLUMNS[next(iter(found.values()))["kind"]]
    rows = []
    for name, entry in entries.items():
        values, sent = (found.get(name, {}).get(measure) for measure in measures.values()), entry.get("wire_bytes")
        rows.append(
            (
                head_title(name) + (" (take this)" if name == taken else ""),
                *(area(value) for value in values),
                "-" if sent is None or not num_sent else bytes_with_unit(sent / num_sent),
                "-" if sent is None else bytes_with_unit(sent),
                entry.get("regulariser") or "-",
            )
        )
    columns = {"method": "", **dict.fromkeys(measures, ""), "each site sends": "", "all sites send": ""}
    return Table({**columns, "regulariser": "left minor"}, rows)


def targets_table(entry: Mapping[str, Any], names: Sequence[str]) -> Table:
    """Lay out one line per label or number of a head, the worst first, with 95 % intervals."""
    found = entry["targets"]
    examples = found["per_target_examples"]
    if found["kind"] == "numbers":
        measures = ["r2", "mean_absolute_error", "within_interval"]
        columns = {"number": "", "samples": "", "R2": "", "mean absolute error": "", "within 90 % interval": ""}
        parts = [[area(value) for value in found[f"per_target_{measure}"]] for measure in measures]
    else:
        columns = {"label": "", "positive samples": "", "average precision": "", "AUROC": "", "F1": ""}
        parts = [
            [
                area(value) + (f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else "")
                for value, bounds in zip(found[f"per_target_{name}"], found[f"per_target_{name}_interval"], strict=True)
            ]
            for name in ("average_precision", "auroc")
        ]
        parts.append([area(value) for value in found["per_target_f1"]])
        measures = ["average_precision"]
    first = found[f"per_target_{measures[0]}"]
    order = sorted(range(len(names)), key=lambda place: -1.0 if first[place] is None else first[place])
    rows = [(names[place], f"{examples[place]:,}", *(part[place] for part in parts)) for place in order]
    return Table(columns, rows)


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
