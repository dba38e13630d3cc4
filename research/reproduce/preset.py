"""Preset: one table of a paper, as rows and columns of run-config keys with a published number in each cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from research.reproduce.catalogue import (
    FILE,
    MEASURES,
    Catalogue,
    PresetError,
    Published,
    check_fields,
    read_published,
    read_toml,
)

_PRESET = {"title", "paper", "place", "seeds", "measures", "notes", "deviations", "run", "columns", "sweep"}
_ROW = {"data", "published", "deviations", "cells", "keys"}
_COLUMN = {"section", "entry", "quoted", "deviations"}


@dataclass(frozen=True)
class Column:
    """One column of the table: a method, or a training.

    Attributes
    ----------
    name : str
        In the table.
    keys : mapping
        Its run-config keys.
    section, entry : str
        Where results.json has its numbers; the entry is by default the key `method`.
    quoted : str
        Why it is not run here, in words; its published numbers are only quoted then.
    deviations : tuple of str
        Names in the catalogue.
    """

    name: str
    keys: Mapping[str, Any]
    section: str = "methods"
    entry: str = ""
    quoted: str = ""
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of the table: a data set, a backbone, a value of a sweep.

    Attributes
    ----------
    name : str
        In the table.
    data : str
        Name in the catalogue; "" where the keys say it.
    keys : mapping
        Its run-config keys, the data set's among them.
    of_column : mapping
        From a column to the run-config keys of that one cell.
    published : mapping
        From measure to column to the published number, in the measure's unit.
    deviations : mapping
        From "" (all cells), a column, or "MEASURE.COLUMN" to names in the catalogue.
    title : str
        Its name without the point of a sweep.
    point : mapping
        The values of the keys that are swept over.
    """

    name: str
    data: str
    keys: Mapping[str, Any]
    of_column: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Published]] = field(default_factory=dict)
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """One table of a paper.

    Attributes
    ----------
    name : str
        The file's, without its ending.
    title, source : str
        Title; paper and table.
    measures : tuple of str
        Names in :data:`research.reproduce.catalogue.MEASURES`.
    seeds : tuple of int
        The paper's.
    notes : str
        Remarks on the published numbers.
    keys : mapping
        Run-config keys of all cells.
    deviations : tuple of str
        Of all cells; names in the catalogue.
    rows, columns : tuple
        Of the table.
    """

    name: str
    title: str
    source: str
    measures: tuple[str, ...]
    seeds: tuple[int, ...]
    notes: str
    keys: Mapping[str, Any]
    deviations: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]

    def settings(self, row: Row, column: Column) -> dict[str, Any]:
        """Return a cell's run-config keys: the preset's, its row's, its column's, its own, then those swept over."""
        return {**self.keys, **row.keys, **column.keys, **row.of_column.get(column.name, {}), **row.point}

    def reasons(self, measure: str, row: Row, column: Column, catalogue: Catalogue) -> list[str]:
        """Return the names of the deviations that touch a cell."""
        own = itertools.chain(
            self.deviations,
            column.deviations,
            *(row.deviations.get(place, ()) for place in ("", column.name, f"{measure}.{column.name}")),
        )
        found = []
        for name in dict.fromkeys(own):
            only = catalogue.deviations[name].measures
            if not only or measure in only:
                found.append(name)
        return found


def preset_names(folder: Path) -> list[str]:
    """Return the names of the presets in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml") if path.name != FILE)


def read_preset(path: Path, catalogue: Catalogue) -> Preset:
    """Read one file.

    Parameters
    ----------
    path : Path
        A TOML file: ``title``, ``paper``, ``place``, ``measures``, ``seeds``, ``notes``, ``deviations``;
        tables ``run``, ``columns.NAME``, ``rows.NAME`` and ``sweep``. A sweep is a list of values for each of some
        keys; every row stands for all combinations, and has its published numbers as lists in their order.
    catalogue : Catalogue
        With the names that it uses.

    Raises
    ------
    PresetError
        If the file cannot be read, or has a field, a name or a number that it may not have.
    """
    content, owner = read_toml(path), str(path)
    check_fields(content, {*_PRESET, "rows"}, owner)
    if missing := sorted({"title", "paper", "place", "measures", "seeds", "columns", "rows"} - set(content)):
        raise PresetError(f"{owner}: lacks {', '.join(missing)}")
    _known(content["paper"], catalogue.papers, "paper", owner)
    for measure in content["measures"]:
        _known(measure, MEASURES, "measure", owner)
    columns = tuple(_column(name, dict(entry), owner) for name, entry in content["columns"].items())
    points = sweep_points(content.get("sweep", {}))
    rows = tuple(
        row
        for name, entry in content["rows"].items()
        for row in _rows(name, dict(entry), points, {column.name for column in columns}, catalogue, owner)
    )
    preset = Preset(
        name=path.stem,
        title=content["title"],
        source=f"{catalogue.papers[content['paper']]}, {content['place']}",
        measures=tuple(content["measures"]),
        seeds=tuple(content["seeds"]),
        notes=content.get("notes", ""),
        keys=content.get("run", {}),
        deviations=tuple(content.get("deviations", ())),
        rows=rows,
        columns=columns,
    )
    named = itertools.chain(
        preset.deviations,
        *(column.deviations for column in columns),
        *(names for row in rows for names in row.deviations.values()),
    )
    for deviation in named:
        _known(deviation, catalogue.deviations, "deviation", owner)
    return preset


def preset_of_run_config(path: Path) -> Preset:
    """Return a file of run-config keys as a preset of one run, of which no number is published.

    Raises
    ------
    PresetError
        If the file cannot be read.
    """
    return Preset(
        name=path.stem,
        title=path.stem,
        source=path.name,
        measures=(),
        seeds=(0, 1, 2, 3, 4),
        notes="",
        keys=read_toml(path),
        deviations=(),
        rows=(Row(path.stem, "", {}),),
        columns=(Column("", {}),),
    )


def with_sweep(preset: Preset, sweep: Mapping[str, Sequence[Any]]) -> Preset:
    """Return a preset each of whose rows stands for all combinations of the values of some more keys.

    A key that the preset itself sweeps over takes these values in place of its own. A published number stays with a
    cell only where these values are the ones that it had.
    """
    rows: dict[str, Row] = {}
    # 1 is the preset's own 1.0, and called so.
    own_values = {key: {row.point[key]: row.point[key] for row in preset.rows if key in row.point} for key in sweep}
    sweep = {key: [own_values[key].get(value, value) for value in values] for key, values in sweep.items()}
    for row, values in itertools.product(preset.rows, sweep_points(sweep)):
        before = {column.name: preset.settings(row, column) for column in preset.columns}
        point = {**row.point, **values}
        own = {name for name, keys in before.items() if all(keys.get(key) == value for key, value in point.items())}
        title = row.title or row.name
        name = swept(title, point)
        published = {
            measure: {column: number for column, number in numbers.items() if column in own}
            for measure, numbers in row.published.items()
        }
        if own or name not in rows:
            rows[name] = replace(row, name=name, published=published, title=title, point=point)
    return replace(preset, rows=tuple(rows.values()))


def sweep_points(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values of some keys; the last key's change fastest."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def swept(name: str, point: Mapping[str, Any]) -> str:
    """Return the name of a row at a point of a sweep."""
    return ", ".join([*([name] if name else []), *(f"{key} {value}" for key, value in point.items())])


def _column(name: str, entry: dict[str, Any], owner: str) -> Column:
    own = {key: entry.pop(key) for key in _COLUMN & set(entry)}
    if not own.get("quoted") and "method" not in entry and "entry" not in own:
        raise PresetError(f"{owner}: columns.{name}: must have a method, an entry, or say why it is only quoted")
    return Column(
        name=name,
        keys=entry,
        section=own.get("section", "methods"),
        entry=own.get("entry", entry.get("method", "")),
        quoted=own.get("quoted", ""),
        deviations=tuple(own.get("deviations", ())),
    )


def _rows(
    name: str,
    entry: dict[str, Any],
    points: Sequence[Mapping[str, Any]],
    columns: set[str],
    catalogue: Catalogue,
    owner: str,
) -> Iterator[Row]:
    own = {key: entry.pop(key) for key in _ROW & set(entry)}
    owner = f"{owner}: rows.{name}"
    data = own.get("data", "")
    if data:
        _known(data, catalogue.data, "data", owner)
    published = own.get("published", {})
    for measure, numbers in published.items():
        _known(measure, MEASURES, "measure", owner)
        for column in numbers:
            _known(column, columns, "column", owner)
    deviations = {"": tuple(own.get("deviations", ()))}
    for place, names in own.get("cells", {}).items():
        _known(place.rpartition(".")[2], columns, "column", owner)
        deviations[place] = tuple(names)
    keys = {**(catalogue.data[data].keys if data else {}), **entry}
    of_column = own.get("keys", {})
    for column in of_column:
        _known(column, columns, "column", owner)
    for index, point in enumerate(points):
        yield Row(
            name=swept(name, point),
            data=data,
            keys=keys,
            of_column=of_column,
            published={
                measure: {column: read_published(given, index, len(points), owner) for column, given in numbers.items()}
                for measure, numbers in published.items()
            },
            deviations=deviations,
            title=name,
            point=point,
        )


def _known(name: str, names: Any, role: str, owner: str) -> None:
    if name not in names:
        raise PresetError(f"{owner}: no such {role}: {name!r}; there are {', '.join(sorted(names))}")
