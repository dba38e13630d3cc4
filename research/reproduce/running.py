"""Makes planned runs, each once: a run that completed is taken as it is, so that a command can be repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedstats_app.base.files import write_atomically
from fedstats_app.data import DatasetError
from fedstats_app.data.clients import training_set
from fedstats_app.report.record import AnotherRunError
from fedstats_app.settings.app_config import AppConfig
from research.reproduce.catalogue import Catalogue
from research.reproduce.plan import PlannedRun
from research.reproduce.simulated import complete, of_app, run_of_app

# Run-config keys to the run folder of a completed run, as `fedstats_app.simulate`.
Simulate = Callable[[Mapping[str, Any]], Path]
SETTINGS = "settings.toml"
# Begins a start-head that the run of another column of the same row and seed leaves: /column:NAME/heads/FILE.
OF_COLUMN = "/column:"


class DataMissingError(ValueError):
    """Data sets that cannot be reached: which, why, and what to put where."""


class RunFailedError(RuntimeError):
    """A run that did not complete: which, and why."""


def check_data(runs: Iterable[PlannedRun], catalogue: Catalogue) -> None:
    """Load every data set that the runs need, so that one that is not there is named before any work.

    Raises
    ------
    DataMissingError
        With all that cannot be reached.
    """
    wanted = {AppConfig.from_run_config(of_app(run.settings)).data: run for run in runs}
    missing = []
    for options, run in wanted.items():
        try:
            training_set(options)
        except DatasetError as error:
            known = catalogue.data.get(run.cells[0][0].row.data)
            title, local = (
                (known.title, known.local) if known else (options.dataset, "a folder that it can be read from")
            )
            missing.append(
                f"{title} cannot be reached: {error}\n  what it takes: {local}\n  where: in any folder; then add "
                "dataset=parquet:/THAT/FOLDER (or folder:, csv:, arrow:) to the command, and label-column=NAME, "
                "image-column=NAME or text-column=NAME where columns have other names"
            )
    if missing:
        raise DataMissingError("\n".join(missing))


def completed_run(folder: Path) -> Path | None:
    """Return the newest run folder in a folder whose status says completed, None where there is none."""
    runs = sorted(path.parent for path in folder.glob("*/status.json"))
    done = [
        run for run in runs if json.loads((run / "status.json").read_text(encoding="utf-8"))["state"] == "completed"
    ]
    return done[-1] if done else None


def interrupted_run(folder: Path) -> Path | None:
    """Return the newest run folder in a folder if it got as far as to be gone on with, else None."""
    runs = sorted(path.parent for path in folder.glob("*/status.json"))
    return runs[-1] if runs and (runs[-1] / "config.json").is_file() else None


def make_runs(
    runs: Sequence[PlannedRun], folder: Path, simulate: Simulate, say: Callable[[str], None]
) -> dict[str, Path]:
    """Make the runs that have not been made, and continue the one that was interrupted.

    Parameters
    ----------
    runs : sequence of PlannedRun
        In this order.
    folder : Path
        Gets a folder per run, with its settings and its run folder.
    simulate : callable
        Makes a run.
    say : callable
        Prints a line.

    Raises
    ------
    RunFailedError
        At the first run that fails, or that starts from a head of a column that was not asked for.

    Returns
    -------
    dict
        From the name of each run to its run folder.
    """
    made: dict[str, Path] = {}
    for number, run in enumerate(runs, start=1):
        place = folder / run.name
        title = f"run {number} of {len(runs)}: {run.title()}; seed {run.settings['seed']}"
        done = completed_run(place)
        if done is None:
            say(title)
            settings = _with_start_head(run, runs, made)
            place.mkdir(parents=True, exist_ok=True)
            write_atomically(place / SETTINGS, tomli_w.dumps(settings).encode())
            began = time.monotonic()
            try:
                done = _made(run_of_app(settings), place, simulate, say)
            except Exception as error:  # whatever a run may end with
                raise RunFailedError(
                    f"{title} failed: {error}. Those before it are kept: repeat the command"
                ) from error
            say(f"  {time.monotonic() - began:.0f} seconds")
        else:
            say(f"{title}: completed before")
        for cell, _ in run.cells:
            complete(done, {**run.settings, **cell.settings}, say)
        made[run.name] = done
    return made


def _with_start_head(run: PlannedRun, runs: Sequence[PlannedRun], made: Mapping[str, Path]) -> Mapping[str, Any]:
    """Return a run's settings, with the head of another column's run where they name one."""
    path = str(run.settings.get("start-head", ""))
    if not path.startswith(OF_COLUMN):
        return run.settings
    column, _, file = path.removeprefix(OF_COLUMN).partition("/")
    cell = run.cells[0][0]
    wanted = (cell.row.name, column, cell.seed)
    for other in runs:
        if other.name in made and any(cell.key == wanted for cell, _ in other.cells):
            return {**run.settings, "start-head": str(made[other.name] / file)}
    raise RunFailedError(f"{run.title()} starts from a head of the column {column!r}: ask for that one, too")


def _made(settings: Mapping[str, Any], place: Path, simulate: Simulate, say: Callable[[str], None]) -> Path:
    """Go on with an interrupted run, or begin."""
    settings, before = {**settings, "output-dir": str(place)}, interrupted_run(place)
    if before is not None:
        say(f"  continuing {before.name}")
        try:
            return simulate({**settings, "resume": str(before)})
        except AnotherRunError as error:  # data or defaults of this app have changed since
            say(f"begun anew: {error}")
    return simulate(settings)
