"""Text for a terminal: names that come from files, tables, paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100
_GAP = "  "


def printable(text: str, width: int = WIDTH) -> str:
    """Return text that cannot steer a terminal, its beginning cut off where it is too long.

    The end is kept because the end of a path tells files apart.
    """
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= width else "..." + clean[len(clean) - width + 3 :]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out rows under a heading; the first `left` columns are aligned left, the others right."""
    lines = [heading, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return "\n".join(
        _GAP.join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def paragraph(text: str, *, first: str = "", rest: str = "") -> str:
    """Wrap text to the width, behind `first` and, from the second line on, `rest`."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def percent(share: float) -> str:
    """Write a share as a percentage; "-" for none (NaN)."""
    return "-" if share != share else f"{100 * share:.2f} %"
