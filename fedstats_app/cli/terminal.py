"""What commands show in a terminal: names that come from files, tables, paragraphs, and progress on stderr.

Progress is a bar in a terminal, elsewhere a line now and then; results go to stdout.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from fedstats_app.grid.progress import Progress, Step
from fedstats_app.report.text_columns import aligned, widths_of

WIDTH = 100

Item = TypeVar("Item")


def printable(text: str, width: int = WIDTH) -> str:
    """Clean text so that it cannot steer a terminal, its beginning cut off if it is too long.

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


@contextmanager
def told(command: str) -> Iterator[Progress]:
    """Show how far a command is, for as long as this is open; one that is over in a few seconds leaves no line.

    Parameters
    ----------
    command : str
        Its name, which every line begins with.

    Yields
    ------
    Progress
        Takes the steps of the command.
    """
    progress = Progress(lambda line: print(f"fedstats {command}: {line}\n", end="", file=sys.stderr, flush=True))
    with _bar(progress) if sys.stderr.isatty() else progress.heartbeat():
        yield progress


def counted(items: Iterable[Item], step: Step) -> Iterator[Item]:
    """Yield items; when the next one is asked for, the one before counts as done, beside those done earlier."""
    before = step.done
    for number, item in enumerate(items):
        step.at(before + number)
        yield item


@contextmanager
def _bar(progress: Progress) -> Iterator[None]:
    """Draw a bar, redrawn several times a second by a thread, that disappears at the end."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    def drawn() -> Group:
        fraction = progress.fraction
        bar = ProgressBar(total=1.0, completed=fraction or 0.0, width=40, pulse=fraction is None)
        return Group(Text(str(progress), overflow="ellipsis", no_wrap=True), bar)

    # What is printed appears above the bar; where it goes to a file it goes there, not to the terminal.
    own = sys.stdout.isatty()
    with Live(get_renderable=drawn, console=Console(stderr=True), transient=True, redirect_stdout=own):
        yield
