"""The results of a run as a plain-text table for the terminal."""

import textwrap
from collections.abc import Sequence

from fedstats_app.methods import display_name
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.text_columns import GAP, WIDTH, aligned, bytes_with_unit, ruled, three_figures, widths_of

_HEADINGS = (
    "method",
    "accuracy",
    "balanced",
    "macro F1",
    "each sent",
    "all sent (MB)",
    "solve (s)",
    "ridge",
    "condition",
    "regulariser",
)
_LEFT_ALIGNED = {0, 9}


def results_table(rows: Sequence[MethodResult], num_sent: int | None = None) -> str:
    """Lay out one line per method: accuracy, what it costs to send, time to solve, regulariser.

    "balanced" is the balanced accuracy, in per cent as the macro F1. "each sent" is what one client sends, a mean, "all
    sent" what all of them do; "ridge" is what was added to the diagonal in all, "condition" the condition number of the
    matrix that was solved. Bytes are as sent, in decimal units (1 MB = 10^6 bytes): what the method alone would cost.

    Parameters
    ----------
    rows : sequence of MethodResult
        In the order they are to be shown.
    num_sent : int, optional
        Clients that sent the bytes; by default those behind the head, of whom some may be an earlier run's.

    Returns
    -------
    str
        ASCII lines of at most 120 columns (but for names outside ASCII), numbers aligned right, no final line break.
    """
    cells = [_cells(row, row.num_clients if num_sent is None else num_sent) for row in rows]
    widths = widths_of([_HEADINGS, *cells])[:-1]
    text_width = max(len(_HEADINGS[-1]), WIDTH - sum(widths) - len(GAP) * len(widths))
    widths.append(text_width)
    body = [
        line
        for row in cells
        for line in _lines(row[:-1], textwrap.wrap(row[-1], text_width, break_on_hyphens=False) or [""], widths)
    ]
    return ruled([aligned(_HEADINGS, widths, _LEFT_ALIGNED)], body)


def _cells(row: MethodResult, num_sent: int) -> tuple[str, ...]:
    return (
        display_name(row.method),
        *("-" if share is None else f"{100 * share:.2f}" for share in (row.accuracy, row.macro_accuracy, row.macro_f1)),
        "-" if num_sent == 0 else bytes_with_unit(row.wire_bytes / num_sent),
        three_figures(row.wire_bytes / 1e6),
        f"{row.solve_seconds:.2f}",
        "-" if row.ridge_effective is None else f"{row.ridge_effective:.3g}",
        "-" if row.condition_number is None else f"{row.condition_number:.1e}",
        row.regulariser or "-",
    )


def _lines(numbers: Sequence[str], texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Give a row, and further lines for the regulariser where it does not fit."""
    blank = [""] * len(numbers)
    return [aligned([*(blank if index else numbers), text], widths, _LEFT_ALIGNED) for index, text in enumerate(texts)]
