"""Which runs a preset's cells need: cells that differ only in what the server solves share one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstats_app.base.option import ConfigError
from fedstats_app.methods import METHODS
from fedstats_app.settings.app_config import AppConfig
from research.reproduce.catalogue import PresetError
from research.reproduce.preset import Column, Preset, Row
from research.reproduce.simulated import STATISTICS_KEYS, Simulation, of_app

# The table has a picture of its own. Numbers travel as in the papers, and neither the extras that are installed nor
# what this app does to help changes one.
_DEFAULTS = {
    "training.max-share": 1.0,
    "plots": False,
    "engine": "torch",
    "feature-power": 1.0,
    "wire-dtype": "float32",
}
_STAGES = ("fine-tune",)
# A stage's table, whose keys a cell without the stage does not take.
_TABLES = {"training": "fine-tune", "fedmezo": "fine-tune"}
_OF_METHODS = {key: name for name, method in METHODS.items() for key in method.options_type.keys()}  # noqa: SIM118


@dataclass(frozen=True)
class Cell:
    """One cell of a preset's table under one seed; `settings` are all of its run-config keys."""

    row: Row
    column: Column
    seed: int
    settings: Mapping[str, Any]

    @property
    def simulated(self) -> str:
        """Name of the simulated entry that it is read from, "" for an entry of the run itself."""
        simulation = Simulation.of(self.settings)
        return simulation.entry if simulation else ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Row, column and seed, which no other cell of the table has."""
        return self.row.name, self.column.name, self.seed


@dataclass
class PlannedRun:
    """A run and the cells that are read from it.

    Attributes
    ----------
    settings : dict
        All of its run-config keys, and those of :mod:`research.reproduce.simulated`.
    cells : list of tuple
        Each cell with the name of its entry in results.json.
    """

    settings: dict[str, Any]
    cells: list[tuple[Cell, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A folder's name: seed and digest of the settings."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"seed-{self.settings['seed']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def title(self) -> str:
        """Return its rows and columns, in words."""
        rows = ", ".join(dict.fromkeys(cell.row.name for cell, _ in self.cells))
        columns = ", ".join(dict.fromkeys(cell.column.name for cell, _ in self.cells if cell.column.name))
        return f"{rows}: {columns}" if columns else rows

    def take(self, cell: Cell) -> bool:
        """Take a cell in, if the run can give its number too: by a further method, or by a variant of one that it has.

        Returns
        -------
        bool
            True if it can.
        """
        if _shared(cell.settings) != _shared(self.settings):
            return False
        name, settings = str(cell.settings.get("method", "all")), self.settings
        if not _trains(settings) and settings != cell.settings:
            wanted = name.split(",") if cell.simulated else [name]
            if not {*wanted, *_methods(settings)} <= set(METHODS):
                return False
            for method in wanted:
                name, settings = _widened(settings, cell.settings, method)
        try:
            AppConfig.from_run_config(of_app(settings))
        except ConfigError:
            return False
        self.settings = settings
        self._read(cell, name)
        return True

    @classmethod
    def of(cls, cell: Cell) -> PlannedRun:
        """Return the run of one cell."""
        run = cls(dict(cell.settings))
        run._read(cell, str(cell.settings.get("method", "all")))
        return run

    def _read(self, cell: Cell, name: str) -> None:
        """Remember where a cell is read from: its column's entry, or the variant that stands for that method."""
        entry = cell.column.entry
        self.cells.append((cell, cell.simulated or (name if entry == cell.settings.get("method") else entry)))


def cells_of(
    preset: Preset, rows: Iterable[Row], columns: Iterable[Column], seeds: Sequence[int], given: Mapping[str, Any]
) -> list[Cell]:
    """Return the cells that are run, row by row and seed by seed.

    Parameters
    ----------
    preset : Preset
        Whose they are.
    rows, columns : iterable
        Some of the preset's; columns that are only quoted are left out.
    seeds : sequence of int
        Under which.
    given : mapping
        Run-config keys that win over the preset's.

    Raises
    ------
    PresetError
        If the keys of a cell are no valid run-config; the message says which cell's.
    """
    columns = [column for column in columns if not column.quoted]
    found = []
    for row in rows:
        for column in columns:
            settings = _used({**_DEFAULTS, **_readable(preset.settings(row, column), given), **given})
            try:
                AppConfig.from_run_config(of_app(settings))
                Simulation.of(settings)
            except (ConfigError, PresetError) as error:
                raise PresetError(f"{preset.name}: {row.name}, {column.name}: {error}") from error
            found += [Cell(row, column, seed, {**settings, "seed": seed}) for seed in seeds]
    return found


def _readable(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out how a table's data set is read where the built-in sample, which takes no such keys, replaces it."""
    if given.get("dataset") != "builtin":
        return settings
    return {key: value for key, value in settings.items() if not key.endswith("-column") and key != "folder-levels"}


def _used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the tables of stages that a cell does not have."""
    absent = {table for table, stage in _TABLES.items() if settings.get(stage, "none") == "none"}
    return {key: value for key, value in settings.items() if key.partition(".")[0] not in absent}


def planned(cells: Iterable[Cell]) -> list[PlannedRun]:
    """Return the runs that the cells need, each cell in the first run that can take it."""
    runs: list[PlannedRun] = []
    for cell in cells:
        if not any(run.take(cell) for run in runs):
            runs.append(PlannedRun.of(cell))
    return runs


def _trains(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(key, "none") != "none" for key in _STAGES)


def _shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys in which the cells of one run must agree; of a run that trains these are all."""
    if _trains(settings):
        return dict(settings)
    apart = {"method", *_OF_METHODS, *STATISTICS_KEYS}
    return {key: value for key, value in settings.items() if key not in apart}


def _methods(settings: Mapping[str, Any]) -> list[str]:
    """Return the methods that a run solves, without their variants' options."""
    return [name.partition("@")[0] for name in str(settings.get("method", "all")).split(",")]


def _widened(settings: dict[str, Any], wanted: Mapping[str, Any], method: str) -> tuple[str, dict[str, Any]]:
    """Return under which name a run also solves a method with the wanted options, and the run's settings then."""
    keys = METHODS[method].options_type.keys()
    if method not in _methods(settings):
        # No cell uses the run's options of this method yet.
        others = {key: value for key, value in settings.items() if key not in keys}
        own = {key: value for key, value in wanted.items() if key in keys}
        return method, {**others, **own, "method": f"{settings['method']},{method}"}
    has, wants = (METHODS[method].options_type.read(values).to_config() for values in (settings, wanted))
    changes = [f"@{key.rpartition('.')[2]}={_text(wants[key])}" for key in keys if wants[key] != has[key]]
    name = "".join([method, *changes])
    named = str(settings["method"]).split(",")
    return name, {**settings, "method": ",".join(dict.fromkeys([*named, name]))}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
