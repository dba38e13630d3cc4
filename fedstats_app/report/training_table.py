"""The trainings of a run as a plain-text table: what a closed-form start is worth."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from fedstats_app.report.decline import decline
from fedstats_app.report.text_columns import GAP, aligned, cut, ruled, three_figures, widths_of
from fedstats_app.report.training_record import TrainingResult, random_head_training

_HEADINGS = ("training", "start", "final", "best", "rounds", "MB", "rounds", "MB", "passes", "seconds")
# First column of a group, the one after its last, and what stands above them.
_GROUPS: tuple[tuple[int, int, str], ...] = (
    (1, 4, "accuracy (%)"),
    (4, 6, "in all"),
    (6, 9, "to the random head's final accuracy"),
)
_LONGEST_NAME = 28
_NEVER = "never"


def training_table(results: Sequence[TrainingResult]) -> str:
    """Lay out one line per training: accuracy, cost, and what it took to get as far as a random head did in the end.

    In brackets is the share of what the random head of the same stage took to get there first. Megabytes (10^6 bytes)
    are up and down of all clients, with those of the closed-form stage, and so are the forward passes of samples
    through the backbone, of which a backward pass counts as two. Without a random head that was evaluated there is
    nothing to compare with, and no column for it. Below the table stands which trainings left a head
    that is less accurate than their start or their best round.

    Parameters
    ----------
    results : sequence of TrainingResult
        In the order they are to be shown.

    Returns
    -------
    str
        ASCII lines of at most 120 columns (but for names outside ASCII), no final line break.
    """
    references = [random_head_training(result.stage, results) for result in results]
    table: list[tuple[str, ...]] = [_HEADINGS, *map(_cells, results, references)]
    groups = _GROUPS
    if not any(reference and reference.final_accuracy is not None for reference in references):
        (first, after, _), groups = _GROUPS[-1], _GROUPS[:-1]
        table = [line[:first] + line[after:] for line in table]
    widths = widths_of(table)
    head, *body = (aligned(line, widths, {0}) for line in table)
    return "\n".join([ruled([_group_line(widths, groups), head], body), *_declines(results)])


def _declines(results: Sequence[TrainingResult]) -> list[str]:
    """Return below the table, for every training that left a worse head than it had before, by how much."""
    return [
        line
        for result in results
        if (worse := decline(result))
        for line in textwrap.wrap(f"* {cut(result.name, _LONGEST_NAME)}: {worse}", 120, subsequent_indent="  ")
    ]


def _cells(result: TrainingResult, reference: TrainingResult | None) -> tuple[str, ...]:
    return (
        cut(result.name, _LONGEST_NAME),
        _per_cent(result.start_accuracy),
        _per_cent(result.final_accuracy),
        _per_cent(result.best_accuracy),
        str(result.num_rounds),
        _megabytes(result.cumulative_bytes()[-1]),
        *_costs_to_reference(result, reference),
        _whole(result.seconds),
    )


def _costs_to_reference(result: TrainingResult, reference: TrainingResult | None) -> tuple[str, str, str]:
    target = None if reference is None else reference.final_accuracy
    if reference is None or target is None:
        return "-", "-", "-"
    return (
        _with_share(result.rounds_to(target), reference.rounds_to(target), _whole),
        _with_share(result.bytes_to(target), reference.bytes_to(target), _megabytes),
        _with_share(result.forward_passes_to(target), reference.forward_passes_to(target), _whole),
    )


def _with_share(cost: int | None, whole: int | None, text: Callable[[float], str]) -> str:
    if cost is None:
        return _NEVER
    return f"{text(cost)} ({100 * cost / whole:.0f}%)" if whole else text(cost)


def _whole(number: float) -> str:
    """Give 8,000, but 2.4e+06."""
    return f"{number:,.0f}" if number < 999_999.5 else f"{number:.3g}"


def _megabytes(number: float) -> str:
    return three_figures(number / 1e6) if number < 999_999.5e6 else f"{number / 1e6:.3g}"


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _group_line(widths: Sequence[int], groups: Sequence[tuple[int, int, str]]) -> str:
    """Write each group's name above the middle of its columns, dashed to both sides."""
    ends = [sum(widths[:column]) + len(GAP) * column for column in range(len(widths) + 1)]
    line = ""
    for first, after, name in groups:
        line = line.ljust(ends[first]) + f" {name} ".center(ends[after] - ends[first] - len(GAP), "-")
    return line
