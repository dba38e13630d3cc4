"""The table: ours beside published, the difference, and why; as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from research.reproduce.catalogue import MEASURES, Catalogue, Measure
from research.reproduce.outcome import Comparison
from research.reproduce.preset import Preset

_HEADINGS = ("", "", "ours", "published", "difference", "why it may differ")
_CSV = ("row", "column", "measure", "unit", "mean", "std", "seeds", "published", "published_spread", "difference")
_REASONS = ("deviations", "changes")


def markdown(preset: Preset, comparisons: Sequence[Comparison], catalogue: Catalogue) -> str:
    """Lay out all cells, a table for each measure, and after them what the reasons say.

    Parameters
    ----------
    preset : Preset
        Preset of the comparisons.
    comparisons : sequence of Comparison
        In the table's order.
    catalogue : Catalogue
        With the sentences.

    Returns
    -------
    str
        Markdown. Ours is the mean over the seeds ± the standard deviation (with n - 1).
    """
    changes = list(dict.fromkeys(change for comparison in comparisons for change in comparison.changes))
    blocks = [f"# {preset.title}", f"{preset.source}."]
    if preset.notes:
        blocks.append(preset.notes)
    for name in preset.measures:
        measure = MEASURES[name]
        rows = [_cells(comparison, changes) for comparison in comparisons if comparison.measure == name]
        if rows:
            blocks += [f"## {measure.heading}", pipe_table(_HEADINGS, rows, left=2)]
        if not any(comparison.measure == name and comparison.published is not None for comparison in comparisons):
            blocks.append(f"{measure.heading}: no numbers are printed, only curves.")
    lines = [
        *(f"- `{name}`: {catalogue.deviations[name].text}" for name in _reasons(comparisons)),
        *(f"- `{number}`: {change}" for number, change in enumerate(changes, start=1)),
        *(f"- {column.name} is quoted, not run: {column.quoted}" for column in preset.columns if column.quoted),
    ]
    if lines:
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def csv_text(comparisons: Sequence[Comparison]) -> str:
    """Write all cells as CSV, a line each, numbers unrounded in the measure's unit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV, *_REASONS])
    for comparison in comparisons:
        mean, deviation = comparison.ours or (None, None)
        unit = MEASURES[comparison.measure].unit
        published = (
            (comparison.published.value, comparison.published.spread)
            if comparison.published is not None
            else (None, None)
        )
        numbers = (mean, deviation, len(comparison.values), *published, comparison.difference)
        writer.writerow(
            [
                comparison.row,
                comparison.column,
                comparison.measure,
                unit,
                *numbers,
                " ".join(comparison.reasons),
                "; ".join(comparison.changes),
            ]
        )
    return text.getvalue()


def pipe_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out a Markdown table whose first columns, and one for words, are to the left."""
    rule = ["---" if place < left or heading.startswith("why") else "---:" for place, heading in enumerate(headings)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *rows))


def _cells(comparison: Comparison, changes: Sequence[str]) -> list[str]:
    measure = MEASURES[comparison.measure]
    why = (
        [*comparison.reasons, *(str(1 + changes.index(change)) for change in comparison.changes)]
        if comparison.values
        else []
    )
    return [
        comparison.row,
        comparison.column,
        _ours(comparison, measure),
        "" if comparison.published is None else str(comparison.published),
        "" if comparison.difference is None else measure.text(comparison.difference, sign=True),
        ", ".join(f"`{reason}`" for reason in why),
    ]


def _ours(comparison: Comparison, measure: Measure) -> str:
    if comparison.ours is None:
        return "not run"
    mean, deviation = map(measure.text, comparison.ours)
    return mean + (f" ± {deviation}" if len(comparison.values) > 1 else "")


def _reasons(comparisons: Sequence[Comparison]) -> list[str]:
    return list(
        dict.fromkeys(reason for comparison in comparisons if comparison.values for reason in comparison.reasons)
    )
