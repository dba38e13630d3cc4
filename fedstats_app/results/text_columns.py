"""What the text tables have in common: columns and numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

WIDTH = 120
GAP = "  "


def aligned(cells: Sequence[str], widths: Sequence[int], left: Collection[int]) -> str:
    """Give one line: each cell in its width, to the right but in the columns of these numbers."""
    padded = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return GAP.join(padded).rstrip()


def three_figures(number: float) -> str:
    """At least three significant figures, never an exponent: 0.0512, 5.88, 110.7, 61,064."""
    if number >= 999.5:
        return f"{number:,.0f}"
    if number >= 99.95:
        return f"{number:.1f}"
    return f"{number:#.3g}" if number >= 1e-3 or number == 0 else f"{number:.6f}"
