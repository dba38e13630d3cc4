"""Tracker: what a tracker can do; Trackers: several at once, none of which can harm a run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

# From the name of a tracker to the library that it needs.
LIBRARIES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}

State = Literal["completed", "failed"]


class Tracker(Protocol):
    """One run in one tracker; making it begins the run there, or goes on with one of the same folder.

    Every module of this room that is named after a tracker has a function ``start(folder, run_id, settings)`` that
    returns one.
    """

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers by name, at a step; steps can begin anew, under other names."""

    def file(self, path: Path) -> None:
        """Log a file of the run folder: text, JSON or a PNG."""

    def finish(self, state: State) -> None:
        """End the run and write what is not written yet."""


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose library is missing, before a run begins.

    Raises
    ------
    ValueError
        The message says what to install.
    """
    missing = [name for name in names if importlib.util.find_spec(LIBRARIES[name]) is None]
    if missing:
        raise ValueError(
            f"tracker: {', '.join(missing)} is not installed on the server: "
            f'pip install "fedstats-app[{",".join(missing)}]", or tracker = "none"'
        )


class Trackers:
    """Any number of trackers. One that fails is named once and then left alone.

    Parameters
    ----------
    names : sequence of str
        Which ones.
    folder : Path
        The run folder, in which all of them write.
    run_id : str
        Flower's.
    settings : mapping
        The run's configuration.
    say : callable
        Prints a line.

    Raises
    ------
    ValueError
        As :func:`check_installed`.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        run_id: str,
        settings: Mapping[str, object],
        say: Callable[[str], None],
    ) -> None:
        check_installed(names)
        self._say = say
        self._open: dict[str, Tracker] = {}
        for name in names:

            def begin(name: str = name) -> None:
                module = importlib.import_module(f"fedstats_app.report.trackers.{name}")
                self._open[name] = module.start(folder, run_id, settings)

            self._guarded(name, begin)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers; see :class:`Tracker`."""
        self._each(lambda tracker: tracker.scalars(values, step))

    def file(self, path: Path) -> None:
        """Log a file; see :class:`Tracker`."""
        self._each(lambda tracker: tracker.file(path))

    def finish(self, state: State) -> None:
        """End the run in all of them; see :class:`Tracker`."""
        self._each(lambda tracker: tracker.finish(state))
        self._open.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            self._guarded(name, lambda tracker=tracker: act(tracker))  # type: ignore[misc]  # mypy on lambda defaults

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  # whatever goes wrong in a library of others, the run goes on
            self._open.pop(name, None)
            self._say(f"tracker {name} failed and gets nothing more of this run: {type(error).__name__}: {error}")
