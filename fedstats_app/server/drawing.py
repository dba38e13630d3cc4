"""Plots that are drawn while the run goes on with what takes longer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Drawing:
    """Draws in one thread of its own: torch leaves Python to others while it computes.

    Parameters
    ----------
    folder : Path or None
        Of the plots; None draws nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # matplotlib's settings are of the process: one at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedstats-plots")
        self._drawn: list[Future[None]] = []

    def plots(self, *args: Any, **kwargs: Any) -> None:
        """Draw what :func:`fedstats_app.report.plots.write.write_plots` draws of these arguments, soon."""
        if self._folder is not None:
            self._drawn.append(self._thread.submit(_write, self._folder, *args, **kwargs))

    def finish(self) -> None:
        """Wait until all is drawn.

        Raises
        ------
        Exception
            What a plot failed with.
        """
        for one in self._drawn:
            one.result()

    def stop(self) -> None:
        """Draw no more than what has begun."""
        self._thread.shutdown(cancel_futures=True)


@contextmanager
def drawing(folder: Path | None) -> Iterator[Drawing]:
    """Give a run its plots; an error in the block ends them too."""
    made = Drawing(folder)
    try:
        yield made
    finally:
        made.stop()


def _write(folder: Path, *args: Any, **kwargs: Any) -> None:
    from fedstats_app.report.plots.write import write_plots  # matplotlib takes a second to load

    write_plots(folder, *args, **kwargs)
