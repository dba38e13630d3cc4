"""The results of a run as plain-text tables for the terminal: methods, trainings, personal models.

Every table has ASCII lines of at most 120 columns (but for names outside ASCII), numbers aligned right, and no final
line break. Bytes are as sent, in decimal units (1 MB = 10^6 bytes).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from fedstats_app.report.method_result import MethodResult, MethodView
from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.text_columns import GAP, WIDTH, aligned, cut, percent, ruled, three_figures, widths_of
from fedstats_app.report.training_record import TrainingResult, decline, random_head_training

_METHOD_HEADINGS = (
    *("method", "accuracy", "balanced", "macro F1", "each sent", "all sent (MB)", "solve (s)", "ridge", "condition"),
    "regulariser",
)
_TRAINING_HEADINGS = ("training", "start", "final", "best", "rounds", "MB", "rounds", "MB", "passes", "seconds")
# First column of a group, the one after its last, and what stands above them.
_GROUPS = ((1, 4, "accuracy (%)"), (4, 6, "in all"), (6, 9, "to the random head's final accuracy"))
_PERSONAL_HEADINGS = (
    *("personal models", "mean (%)", "deviation", "pooled (%)", "clients", "failed", "MB down", "MB up", "passes"),
    "seconds",
)
_LONGEST_TRAINING, _LONGEST_APPROACH = 28, 26


def results_table(rows: Sequence[MethodResult], num_sent: int | None = None) -> str:
    """Lay out one line per method: accuracy, what it costs to send, time to solve, regulariser.

    "balanced" is the balanced accuracy, in per cent as the macro F1. "each sent" is what one client sends, a mean, "all
    sent" what all of them do: what the method alone would cost. "ridge" is what was added to the diagonal in all,
    "condition" the condition number of the matrix that was solved.

    Parameters
    ----------
    rows : sequence of MethodResult
        In the order they are to be shown.
    num_sent : int, optional
        Clients that sent the bytes; by default those behind the head, of whom some may be an earlier run's.
    """
    cells = [_method_cells(row, row.num_clients if num_sent is None else num_sent) for row in rows]
    widths = widths_of([_METHOD_HEADINGS, *cells])[:-1]
    widths.append(max(len(_METHOD_HEADINGS[-1]), WIDTH - sum(widths) - len(GAP) * len(widths)))
    lines: list[Sequence[str]] = [_METHOD_HEADINGS]
    for *numbers, regulariser in cells:
        # Where it does not fit, it goes on below itself.
        first, *more = textwrap.wrap(regulariser, widths[-1], break_on_hyphens=False) or [""]
        lines += [[*numbers, first], *([*[""] * len(numbers), text] for text in more)]
    head, *body = (aligned(line, widths, {0, len(widths) - 1}) for line in lines)
    return ruled([head], body)


def _method_cells(row: MethodResult, num_sent: int) -> tuple[str, ...]:
    one = MethodView.of(row.method, row.to_json(), num_sent)
    shares = (share.removesuffix(" %") for share in (one.accuracy, one.balanced, one.f1))
    return (one.title, *shares, one.each, one.megabytes, one.solve, one.ridge, one.condition, one.regulariser)


def training_table(results: Sequence[TrainingResult]) -> str:
    """Lay out one line per training: accuracy, cost, and what it took to get as far as a random head did in the end.

    In brackets is the share of what the random head of the same stage took to get there first. Megabytes are up and
    down of all clients, with those of the closed-form stage, and so are the forward passes of samples through the
    backbone, of which a backward pass counts as two. Without a random head that was evaluated there is nothing to
    compare with, and no column for it. Below the table stands which trainings left a head that is less accurate than
    their start or their best round.
    """
    references = [random_head_training(result.stage, results) for result in results]
    lines: list[Sequence[str]] = [_TRAINING_HEADINGS, *map(_training_cells, results, references)]
    groups: Sequence[tuple[int, int, str]] = _GROUPS
    if not any(reference and reference.final_accuracy is not None for reference in references):
        (first, after, _), groups = _GROUPS[-1], _GROUPS[:-1]
        lines = [[*line[:first], *line[after:]] for line in lines]
    widths = widths_of(lines)
    head, *body = (aligned(line, widths, {0}) for line in lines)
    declines = [(cut(result.name, _LONGEST_TRAINING), decline(result)) for result in results]
    notes = (f"* {name}: {worse}" for name, worse in declines if worse)
    return "\n".join([ruled([_group_line(widths, groups), head], body), *_wrapped(notes)])


def _wrapped(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent=GAP)]


def _training_cells(result: TrainingResult, reference: TrainingResult | None) -> tuple[str, ...]:
    shares = (result.start_accuracy, result.final_accuracy, result.best_accuracy)
    return (
        cut(result.name, _LONGEST_TRAINING),
        *(percent(share).removesuffix(" %") for share in shares),
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
        return "never"
    return f"{text(cost)} ({100 * cost / whole:.0f}%)" if whole else text(cost)


def _whole(number: float) -> str:
    """Give 8,000, but 2.4e+06."""
    return f"{number:,.0f}" if number < 999_999.5 else f"{number:.3g}"


def _megabytes(number: float) -> str:
    return three_figures(number / 1e6) if number < 999_999.5e6 else f"{number / 1e6:.3g}"


def _group_line(widths: Sequence[int], groups: Sequence[tuple[int, int, str]]) -> str:
    """Write each group's name above the middle of its columns, dashed to both sides."""
    ends = [sum(widths[:column]) + len(GAP) * column for column in range(len(widths) + 1)]
    line = ""
    for first, after, name in groups:
        line = line.ljust(ends[first]) + f" {name} ".center(ends[after] - ends[first] - len(GAP), "-")
    return line


def personal_table(results: Sequence[PersonalResult]) -> str:
    """Lay out one line per approach, and below them what else happened.

    "mean" and "deviation" are over the clients' accuracies on their own test samples, every client counting alike;
    "pooled" is the share of all these samples that is predicted right. Megabytes are those of all clients, and so are
    the forward passes of samples through the backbone, of which a backward pass counts as two. Costs beyond 10^12 need
    more columns than there are.
    """
    lines = [_PERSONAL_HEADINGS, *map(_personal_cells, results)]
    widths = widths_of(lines)
    head, *body = (aligned(line, widths, {0}) for line in lines)
    return ruled([head], body)


def _personal_cells(result: PersonalResult) -> tuple[str, ...]:
    return (
        cut(approach_name(result.approach), _LONGEST_APPROACH),
        *(percent(share).removesuffix(" %") for share in (result.mean, result.std, result.weighted_mean)),
        f"{len(result.num_test):,}",
        f"{len(result.failures):,}" if result.failures else "-",
        three_figures(result.bytes_down / 1e6),
        three_figures(result.bytes_up / 1e6),
        _whole(result.forward_passes),
        f"{result.seconds:,.0f}",
    )
