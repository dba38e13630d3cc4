"""What a user sees of a run: our lines, and no more of Flower's than needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Print one line of progress for the user."""
    print(f"[fedstats] {line}", flush=True)


class LastWord(logging.Handler):
    """Says a line once more after everything that Flower logs when its process ends: its traceback, its exit code.

    Parameters
    ----------
    line : str
        What a user should see last.
    """

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line after the message with which Flower's process ends."""
        if record.funcName == "flwr_exit":
            print(self.line, flush=True)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Keep Flower's own round-by-round log, which repeats what is said here, to warnings."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
