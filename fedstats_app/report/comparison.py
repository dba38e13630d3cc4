"""Several runs: a list of them, and one page that compares them."""

from __future__ import annotations

import base64
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstats_app.data.paths import without_folders
from fedstats_app.methods import display_name, method_order
from fedstats_app.report.page import Section, parts, render, settings
from fedstats_app.report.plots.first_stage import CostPoint, accuracy_figure
from fedstats_app.report.plots.style import png_bytes
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.text_columns import counted, interval_text, percent, size
from fedstats_app.storage.files import write_atomically


@dataclass(frozen=True)
class RunLine:
    """One run in a list.

    Attributes
    ----------
    name : str
        The folder's.
    date : str
        When it started, in UTC; "" where that is not known.
    status : str
        "completed", "failed", "running", or "damaged".
    data, backbone : str
        Of paths the last part.
    methods : tuple of str
        Names of its closed-form methods.
    best : str
        The most accurate of them; "" where none was evaluated.
    accuracy : float or None
        Its accuracy, 0 to 1.
    wire_bytes : int or None
        What all sites sent for it.
    """

    name: str
    date: str
    status: str
    data: str = ""
    backbone: str = ""
    methods: tuple[str, ...] = ()
    best: str = ""
    accuracy: float | None = None
    wire_bytes: int | None = None

    @classmethod
    def of(cls, run: RunRecord) -> RunLine:
        """Return what a list says of a run."""
        entry: Mapping[str, Any] = run.methods.get(run.best, {})
        return cls(
            name=run.name,
            date=str(run.status.get("started", "")).replace("T", " ").removesuffix("Z"),
            status=str(run.status.get("state", "?")),
            data=without_folders(str(run.config.get("data", ""))),
            backbone=without_folders(str(run.config.get("backbone", {}).get("name", ""))),
            methods=tuple(run.methods),
            best=run.best,
            accuracy=entry.get("accuracy"),
            wire_bytes=entry.get("wire_bytes"),
        )


def list_runs(folder: Path) -> list[RunLine]:
    """Return the runs in a folder, the latest first; one whose files cannot be read is listed as damaged.

    Parameters
    ----------
    folder : Path
        Such as `~/fedstats-runs`: its sub-folders with a status.json are runs.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    found = []
    for path in sorted((status.parent for status in folder.glob("*/status.json")), reverse=True):
        try:
            found.append(RunLine.of(RunRecord.read(path)))
        except (ValueError, OSError, KeyError, TypeError):
            found.append(RunLine(path.name, "", "damaged"))
    return found


def write_comparison(folders: Sequence[Path], path: Path) -> Path:
    """Write one page that compares runs.

    Parameters
    ----------
    folders : sequence of Path
        Run folders, at least two.
    path : Path
        The page to write.

    Raises
    ------
    FileNotFoundError
        If one is no run folder.
    ValueError
        If there are fewer than two, or a file in one is damaged.
    """
    if len(folders) < 2:
        raise ValueError(f"a comparison needs at least two runs, got {len(folders)}")
    write_atomically(path, comparison([RunRecord.read(folder) for folder in folders]).encode())
    return path


def comparison(runs: Sequence[RunRecord]) -> str:
    """Render the page as HTML that needs no other file and no network."""
    letters, lines = _letters(len(runs)), [RunLine.of(run) for run in runs]
    columns = dict.fromkeys(letters, "")
    warning = "Not all of these runs were completed."
    is_completed = all(run.status.get("state") == "completed" for run in runs)
    sections = {
        "Before you compare": [] if is_completed else [parts.line(warning)],
        "Runs": [parts.table(_COLUMNS, [_row(*one) for one in zip(runs, lines, letters, strict=True)])],
        "Accuracy against bytes": list(_figure(runs, letters)),
        "Methods": [parts.table({"method": ""} | columns, _table(runs))],
        "Settings that differ": [parts.table({"setting": ""} | columns, _differences(runs))],
    }
    places = ("warnings", "runs", "chart", "methods", "settings")
    title = f"{counted(len(runs), 'run')} compared"
    return render(title, _summary(runs, lines, letters), map(Section, places, sections, sections.values()))


_COLUMNS = {"run": "", "started": "left", "data": "left", "network": "left", "sites": "", "best method": "left"}
_COLUMNS |= {"accuracy": "", "95 % interval": "", "all sites send": ""}


def _letters(number: int) -> list[str]:
    if number <= len(string.ascii_uppercase):
        return list(string.ascii_uppercase[:number])
    return [str(place) for place in range(1, number + 1)]


def _summary(runs: Sequence[RunRecord], lines: Sequence[RunLine], letters: Sequence[str]) -> str:
    if not _comparable(runs):
        return "These runs were not scored on the same test data: which is better cannot be said from their accuracies."
    scored = [(line.accuracy, line, letter) for line, letter in zip(lines, letters, strict=True) if line.accuracy]
    if not scored:
        return "None of these runs was evaluated."
    accuracy, line, letter = max(scored, key=lambda one: one[0])
    return (
        f"The most accurate is run {letter} with {display_name(line.best)}: {percent(accuracy)} for "
        f"{size(line.wire_bytes or 0)} from all its sites."
    )


def _comparable(runs: Sequence[RunRecord]) -> bool:
    """Return whether the runs were scored on the same samples, as far as their folders tell."""
    return len({(run.config.get("data"), run.num_test, run.results.get("evaluated_on")) for run in runs}) == 1


def _row(run: RunRecord, line: RunLine, letter: str) -> tuple[str, ...]:
    return (
        f"{letter}: {line.name}" + ("" if line.status == "completed" else f" ({line.status})"),
        line.date,
        line.data or "-",
        line.backbone or "-",
        f"{run.config.get('num_clients', 0):,}",
        display_name(line.best) or "-",
        percent(line.accuracy),
        interval_text(run.methods.get(run.best, {}).get("accuracy_interval")),
        "-" if line.wire_bytes is None else size(line.wire_bytes),
    )


def _figure(runs: Sequence[RunRecord], letters: Sequence[str]) -> Iterator[str]:
    """Draw accuracy against megabytes of all runs; nothing without two points."""
    found = [
        (CostPoint(f"{letter} {display_name(name)}", entry["wire_bytes"] / 1e6, entry["accuracy"]), colour)
        for colour, (run, letter) in enumerate(zip(runs, letters, strict=True))
        for name, entry in run.scored.items()
        if entry["wire_bytes"] > 0
    ]
    if len(found) > 1:
        points, colours = zip(*found, strict=True)
        picture = png_bytes(accuracy_figure(points, counted(len(runs), "run"), colours=colours))
        yield parts.note("One colour per run; each point is a method.")
        yield parts.figure(base64.b64encode(picture).decode(), "accuracy against megabytes of all runs")


def _table(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Lay out the accuracy of every method in every run, and of what was trained."""
    names = sorted({name for run in runs for name in run.methods}, key=lambda name: (method_order(name), name))
    rows = [
        [display_name(name), *(percent(run.methods.get(name, {}).get("accuracy")) for run in runs)] for name in names
    ]
    trained = [{one.name: percent(one.final_accuracy) for one in run.trainings} for run in runs]
    for name in dict.fromkeys(name for found in trained for name in found):
        rows.append([runs[0].title_of(name), *(found.get(name, "-") for found in trained)])
    return rows


def _differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Lay out every setting that is not the same in all runs, with its value in each."""
    found = [settings(run) for run in runs]
    keys = dict.fromkeys(key for one in found for key in one)
    rows = [[key, *(one.get(key, "-") for one in found)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]
