"""Text for a terminal: names that come from files, tables, paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedstats_app.report.text_columns import aligned, widths_of

WIDTH = 100


def printable(text: str, width: int = WIDTH) -> str:
    """Return text that cannot steer a terminal, its beginning cut off where it is too long.

    The end is kept because the end of a path tells files apart.
    """
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean if len(clean) <= width else "..." + clean[len(clean) - width + 3 :]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out rows under a heading; the first `left` columns are aligned left, the others right."""
    lines = [heading, *rows]
    return "\n".join(aligned(line, widths_of(lines), range(left)) for line in lines)


def paragraph(text: str, *, first: str = "", rest: str = "") -> str:
    """Wrap text to the width, behind `first` and, from the second line on, `rest`."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
