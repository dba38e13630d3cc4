"""Which runs a preset's cells need: cells that differ only in what the server solves share one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedstats_app.config import AppConfig, ConfigError
from fedstats_app.methods import METHODS
from fedstats_app.reproduce.catalogue import PresetError
from fedstats_app.reproduce.preset import Column, Preset, Row

_STAGES = ("fine-tune", "personalise")
_OF_METHODS = {key: name for name, method in METHODS.items() for key in method.options.keys()}  # noqa: SIM118


@dataclass(frozen=True)
class Cell:
    """One cell of a preset's table under one seed; `settings` are all of its run-config keys."""

    row: Row
    column: Column
    seed: int
    settings: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, int]:
        """Row, column and seed, which no other cell of the table has."""
        return self.row.name, self.column.name, self.seed


@dataclass
class PlannedRun:
    """A run and the cells that are read from it."""

    settings: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A folder's name: seed and digest of the settings."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"seed-{self.settings['seed']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def take(self, cell: Cell) -> bool:
        """Take a cell in, if the run's settings can be widened so that its number is still the same."""
        if _shared(cell.settings) != _shared(self.settings):
            return False
        own, mine = _methods(cell.settings), _methods(self.settings)
        together = {**self.settings, **cell.settings, "method": ",".join(dict.fromkeys([*mine, *own]))}
        if not (_same(own, together, cell.settings) and _same(mine, together, self.settings)):
            return False
        try:
            AppConfig.from_run_config(together)
        except ConfigError:
            return False
        self.settings = together
        self.cells.append(cell)
        return True


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
            settings = {**preset.settings(row, column), **given}
            try:
                AppConfig.from_run_config(settings)
            except ConfigError as error:
                raise PresetError(f"{preset.name}: {row.name}, {column.name}: {error}") from error
            found += [Cell(row, column, seed, {**settings, "seed": seed}) for seed in seeds]
    return found


def planned(cells: Iterable[Cell]) -> list[PlannedRun]:
    """Return the runs that the cells need, each cell in the first run that can take it."""
    runs: list[PlannedRun] = []
    for cell in cells:
        if not any(run.take(cell) for run in runs):
            runs.append(PlannedRun(dict(cell.settings), [cell]))
    return runs


def _shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys in which the cells of one run must agree; of a run that trains these are all."""
    if any(settings.get(key, "none") != "none" for key in _STAGES):
        return dict(settings)
    return {key: value for key, value in settings.items() if key != "method" and key not in _OF_METHODS}


def _methods(settings: Mapping[str, Any]) -> list[str]:
    return list(METHODS) if settings.get("method", "all") == "all" else str(settings["method"]).split(",")


def _same(methods: Iterable[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether the options of some methods are the same."""
    return all(METHODS[name].options.read(one) == METHODS[name].options.read(other) for name in methods)
