"""Results of a preset's cells, beside the published numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedstats_app.base.files import read_json_file
from research.reproduce.catalogue import MEASURES, Catalogue, DataSet, PresetError, Published
from research.reproduce.plan import PlannedRun
from research.reproduce.preset import Column, Preset, Row

# Of the samples that the paper has; its split drops a remainder.
_ALL_SAMPLES = 0.99


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation with n - 1, which is 0 for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class CellResult:
    """One cell under one seed.

    Attributes
    ----------
    row, column, seed
        Which.
    run : str
        Its run folder.
    values : mapping
        From measure to number, in the measure's unit.
    changes : sequence of str
        How the run differs from the preset, in words: keys that were given, samples that were not there.
    """

    row: str
    column: str
    seed: int
    run: str
    values: Mapping[str, float]
    changes: Sequence[str] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Row, column and seed, which no other result of the table shares."""
        return self.row, self.column, self.seed


@dataclass(frozen=True)
class Comparison:
    """One cell and measure: ours over the seeds, and the published number.

    Attributes
    ----------
    row, column, measure : str
        Which.
    values : tuple of float
        One per seed, in the measure's unit; empty where nothing was run.
    published : Published or None
        None where it is not recorded.
    reasons : tuple of str
        Names of the deviations that touch it.
    changes : tuple of str
        Deviations of the runs themselves, in words.
    """

    row: str
    column: str
    measure: str
    values: tuple[float, ...]
    published: Published | None
    reasons: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def ours(self) -> tuple[float, float] | None:
        """Mean and standard deviation (with n - 1) over the seeds."""
        return mean_and_deviation(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """Ours less the published number; None if one of them is missing."""
        return self.ours[0] - self.published.value if self.ours is not None and self.published is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and what follows from them."""
        mean, deviation = self.ours or (None, None)
        return {
            **asdict(self),
            "unit": MEASURES[self.measure].unit,
            "mean": mean,
            "std": deviation,
            "difference": self.difference,
        }


def cell_results(
    preset: Preset, run: PlannedRun, folder: Path, given: Mapping[str, Any], catalogue: Catalogue
) -> list[CellResult]:
    """Read the cells of one run from its folder.

    Parameters
    ----------
    preset : Preset
        Whose cells they are.
    run : PlannedRun
        With the cells.
    folder : Path
        Its run folder, completed.
    given : mapping
        Run-config keys that were given in place of the preset's.
    catalogue : Catalogue
        With the sizes of the data sets.

    Raises
    ------
    PresetError
        If the run's results have no such entry.
    """
    results, config = read_json_file(folder / "results.json"), read_json_file(folder / "config.json")
    words = ", ".join(f"{key}={value}" for key, value in given.items())
    changes = [f"given on the command line: {words}"] if given else []
    found = []
    for cell, name in run.cells:
        section = results.get(cell.column.section, {})
        if cell.column.entry and name not in section:
            raise PresetError(
                f"{preset.name}: {cell.row.name}, {cell.column.name}: {folder} has no {name!r} among "
                f"its {cell.column.section}: {', '.join(section) or 'none'}"
            )
        entry = section.get(name, {})
        known = catalogue.data.get(cell.row.data)
        fewer = _fewer(results, known) if known else []
        found.append(
            CellResult(
                row=cell.row.name,
                column=cell.column.name,
                seed=cell.seed,
                run=str(folder),
                values={
                    measure: number
                    for measure in preset.measures
                    if (number := _number(measure, entry, config)) is not None
                },
                changes=(*changes, *fewer),
            )
        )
    return found


def compare(preset: Preset, results: Iterable[CellResult], catalogue: Catalogue) -> list[Comparison]:
    """Put what came out beside what was published, for every row of which something was run."""
    by_cell: dict[tuple[str, str], list[CellResult]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        by_cell.setdefault((result.row, result.column), []).append(result)
    rows = {row.name: row for row in preset.rows}
    found_rows = dict.fromkeys(row for row, _ in by_cell)
    # Rows of a sweep that an earlier command was given stand in results only.
    names = [*(name for name in rows if name in found_rows), *(name for name in found_rows if name not in rows)]
    found = []
    for measure in preset.measures:
        for name in names:
            row = rows.get(name) or Row(name, "", {})
            for column in preset.columns:
                seeds = by_cell.get((name, column.name), [])
                compared = _comparison(preset, measure, row, column, seeds, catalogue)
                if compared.values or compared.published is not None:
                    found.append(compared)
    return found


def _comparison(
    preset: Preset, measure: str, row: Row, column: Column, seeds: Sequence[CellResult], catalogue: Catalogue
) -> Comparison:
    changes = [change for result in seeds for change in result.changes]
    missing = sorted(set(preset.seeds) - {result.seed for result in seeds})
    if seeds and missing:
        changes.append(f"seeds: {len(seeds)} in place of {len(preset.seeds)}")
    return Comparison(
        row=row.name,
        column=column.name,
        measure=measure,
        values=tuple(result.values[measure] for result in seeds if measure in result.values),
        published=row.published.get(measure, {}).get(column.name),
        reasons=tuple(preset.reasons(measure, row, column, catalogue)),
        changes=tuple(dict.fromkeys(changes)),
    )


def _number(measure: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """Return a measure in its unit; None where the entry has none."""
    wanted = MEASURES[measure]
    # A training's entry has the paper's formula under another name, of both ways.
    number = entry.get(wanted.entry or measure, entry.get("formula_bytes") if measure == "uplink_bytes" else None)
    if number is None:
        return None
    sizes: dict[str, Callable[[], int]] = {
        "clients": lambda: config["num_clients"],
        "classes": lambda: len(config["class_names"]),
        "dimension": lambda: config["backbone"]["feature_dim"],
    }
    return float(wanted.factor * number / math.prod(sizes[name]() for name in wanted.per))


def _fewer(results: Mapping[str, Any], paper: DataSet) -> list[str]:
    """Say where a run has fewer samples than the paper."""
    samples = max((entry["num_examples"] for entry in results["methods"].values()), default=0)
    test = results.get("num_test_examples") or 0
    counts = (("training ", samples, paper.train), ("test ", test, paper.test), ("", samples + test, paper.all))
    return [
        f"stand-in data: {had:,} {kind}samples in place of {wanted:,}"
        for kind, had, wanted in counts
        if had < _ALL_SAMPLES * wanted
    ]
