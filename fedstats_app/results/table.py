"""The results of a run as a plain-text table for the terminal."""

import textwrap
from collections.abc import Sequence

from fedstats_app.methods import display_name
from fedstats_app.outcomes.method_result import MethodResult
from fedstats_app.results.text_columns import GAP, WIDTH, aligned, ruled, three_figures, widths_of

_HEADINGS = (
    "method",
    "accuracy (%)",
    "balanced",
    "macro F1",
    "each up",
    "all up (MB)",
    "solve (s)",
    "ridge",
    "condition",
    "regulariser",
)
_LEFT_ALIGNED = {0, 9}


def results_table(rows: Sequence[MethodResult]) -> str:
    """Lay out one line per method: accuracy, what it costs to send, time to solve, regulariser.

    "balanced" is the balanced accuracy, in per cent as the macro F1. "each up" is what one client sends, a mean, "all
    up" what all of them send; "ridge" is what was added to the diagonal in all, "condition" the condition number of
    the matrix that was solved. Bytes are those of the papers' formulas, in decimal units (1 MB = 10^6 bytes): what the
    method alone would cost.

    Parameters
    ----------
    rows : sequence of MethodResult
        In the order they are to be shown.

    Returns
    -------
    str
        ASCII lines of at most 120 columns (but for names outside ASCII), numbers aligned right, no final line break.
    """
    cells = [_cells(row) for row in rows]
    widths = widths_of([_HEADINGS, *cells])[:-1]
    text_width = max(len(_HEADINGS[-1]), WIDTH - sum(widths) - len(GAP) * len(widths))
    widths.append(text_width)
    body = [
        line
        for row in cells
        for line in _lines(row[:-1], textwrap.wrap(row[-1], text_width, break_on_hyphens=False) or [""], widths)
    ]
    return ruled([aligned(_HEADINGS, widths, _LEFT_ALIGNED)], body)


def _cells(row: MethodResult) -> tuple[str, ...]:
    return (
        display_name(row.method),
        *("-" if share is None else f"{100 * share:.2f}" for share in (row.accuracy, row.macro_accuracy, row.macro_f1)),
        "-" if row.num_clients == 0 else _bytes_with_unit(row.uplink_bytes / row.num_clients),
        three_figures(row.uplink_bytes / 1e6),
        f"{row.solve_seconds:.2f}",
        "-" if row.ridge_effective is None else f"{row.ridge_effective:.3g}",
        "-" if row.condition_number is None else f"{row.condition_number:.1e}",
        row.regulariser or "-",
    )


def _lines(numbers: Sequence[str], texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Give a row, and further lines for the regulariser where it does not fit."""
    blank = [""] * len(numbers)
    return [aligned([*(blank if index else numbers), text], widths, _LEFT_ALIGNED) for index, text in enumerate(texts)]


def _bytes_with_unit(number: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        # 999.95 KB would round to "1000 KB".
        if number >= 0.9995 * size:
            return f"{three_figures(number / size)} {unit}"
    return f"{three_figures(number / 1e3)} KB"
