"""Progress of a command on stderr: a bar in a terminal, elsewhere a line now and then; results go to stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from fedstats_app.grid.progress import Progress, Step

Item = TypeVar("Item")


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
    with ExitStack() as shown:
        if sys.stderr.isatty():
            shown.enter_context(_bar(progress))
        else:
            shown.enter_context(progress.heartbeat())
        yield progress


def counted(items: Iterable[Item], step: Step) -> Iterator[Item]:
    """Yield items and count those that whoever takes them has come back for as done, beside those done before."""
    before = step.done
    for number, item in enumerate(items):
        step.at(before + number)
        yield item


@contextmanager
def _bar(progress: Progress) -> Iterator[None]:
    """Draw a bar, redrawn several times a second by a thread, that is gone in the end."""
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
