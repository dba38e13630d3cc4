"""From a preset to its files: the runs that are missing are made, then table, curves and numbers are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedstats_app.base.files import read_json_file, to_json, write_atomically
from fedstats_app.report.plots.later_stages import training_figure
from fedstats_app.report.plots.style import save_png
from research.reproduce.catalogue import Catalogue
from research.reproduce.outcome import CellResult, Comparison, cell_results, compare
from research.reproduce.picture import draw_curves, panels_of
from research.reproduce.plan import PlannedRun
from research.reproduce.preset import Preset
from research.reproduce.running import Simulate, check_data, make_runs
from research.reproduce.seed_statistics import aggregate, read_trainings
from research.reproduce.seed_statistics import markdown as markdown_of_runs
from research.reproduce.table import csv_text, markdown

RESULTS = "results.json"


@dataclass(frozen=True)
class Report:
    """Results of a command.

    Attributes
    ----------
    text : str
        The tables, Markdown.
    files : tuple of Path
        All that was written, but for the run folders.
    comparisons : tuple of Comparison
        Every cell and measure.
    """

    text: str
    files: tuple[Path, ...]
    comparisons: tuple[Comparison, ...]


def reproduce(
    preset: Preset,
    runs: Sequence[PlannedRun],
    catalogue: Catalogue,
    *,
    given: Mapping[str, Any],
    folder: Path,
    simulate: Simulate,
    say: Callable[[str], None],
) -> Report:
    """Make the runs of a preset and write what came out.

    Parameters
    ----------
    preset : Preset
        The table.
    runs : sequence of PlannedRun
        Of all its cells or some; what an earlier command found of the others stays in the table.
    catalogue : Catalogue
        Of the preset.
    given : mapping
        The run-config keys that were given in place of the preset's.
    folder : Path
        Gets results.json (all numbers), table.md, table.csv, the curves of a sweep, training.png if something was
        trained, and in ``runs`` a folder for each run.
    simulate, say : callable
        As of :func:`research.reproduce.running.make_runs`.

    Raises
    ------
    DataMissingError
        If a data set cannot be reached; nothing was run then.
    RunFailedError
        At the first run that fails. The runs before it are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aggregated, trainings = {}, []
    check_data(runs, catalogue)
    made = make_runs(runs, folder / "runs", simulate, say)
    results = {result.key: result for result in _earlier(folder / RESULTS)}
    for run in runs:
        found = cell_results(preset, run, made[run.name], given, catalogue)
        results |= {result.key: result for result in found}
    for name, folders in _by_settings(runs, made).items():
        aggregated[name] = aggregate(folders)
        trainings += [result for path in folders for result in read_trainings(path)]
    comparisons = compare(preset, results.values(), catalogue)
    text = markdown(preset, comparisons, catalogue) if preset.measures else markdown_of_runs(aggregated)
    content = {
        "preset": preset.name,
        "title": preset.title,
        "source": preset.source,
        "table": [result.to_json() for result in comparisons],
        "cells": [asdict(result) for result in results.values()],
        "runs": aggregated,
    }
    write_atomically(folder / RESULTS, (to_json(content) + "\n").encode())
    write_atomically(folder / "table.md", text.encode())
    write_atomically(folder / "table.csv", csv_text(comparisons).encode())
    files = [folder / RESULTS, folder / "table.md", folder / "table.csv"]
    for measure in preset.measures:
        if panels := panels_of(
            preset.rows, [comparison for comparison in comparisons if comparison.measure == measure]
        ):
            files.append(folder / f"{measure}-curves.png")
            draw_curves(panels, files[-1], preset.title)
    if any(training.final_accuracy is not None for training in trainings):
        files.append(folder / "training.png")
        save_png(training_figure(trainings, preset.title), files[-1])
    return Report(text, tuple(files), tuple(comparisons))


def _earlier(path: Path) -> list[CellResult]:
    """Return an earlier command's results whose run is still there."""
    found = [CellResult(**entry) for entry in read_json_file(path)["cells"]] if path.is_file() else []
    return [result for result in found if Path(result.run).is_dir()]


def _by_settings(runs: Sequence[PlannedRun], made: Mapping[str, Path]) -> dict[str, list[Path]]:
    """Return the run folders of the seeds of each setting, by the keys in which settings differ."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        settings = {key: value for key, value in run.settings.items() if key != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(run)
    return {seeds[0].title(): [made[run.name] for run in seeds] for seeds in groups.values()}
