"""Cells that can share a run do, and their numbers are those of runs of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstats_app import simulate
from fedstats_app.base.option import flattened
from research.reproduce.catalogue import Catalogue
from research.reproduce.outcome import cell_results
from research.reproduce.plan import Cell, PlannedRun, planned
from research.reproduce.preset import Column, Preset, Row
from research.reproduce.simulated import of_app

ROW = Row("row", "", {})


def cell(name: str, seed: int = 0, **settings: Any) -> Cell:
    keys = {key.replace("_", "-"): value for key, value in flattened(settings).items()}
    return Cell(ROW, Column(name, {}, entry=keys["method"]), seed, {**keys, "seed": seed})


def entries(runs: list[PlannedRun]) -> list[list[str]]:
    return [[entry for _, entry in run.cells] for run in runs]


def test_methods_of_one_split_share_a_run_with_the_options_of_each() -> None:
    runs = planned(
        [
            cell("a", method="fedncm", fedcof={"shrinkage": 7.0}),  # no cell's option yet
            cell("b", method="fedcof", fedcof={"shrinkage": 1.0}),
            cell("c", method="fed3r", fed3r={"ridge_lambda": 0.01}),
            cell("d", method="fedncm"),
        ]
    )
    assert entries(runs) == [["fedncm", "fedcof", "fed3r", "fedncm"]]
    expected = {"method": "fedncm,fedcof,fed3r", "fedcof.shrinkage": 1.0, "fed3r.ridge-lambda": 0.01, "seed": 0}
    assert runs[0].settings == expected


def test_other_values_of_an_option_are_variants_in_the_same_run() -> None:
    gammas = [cell(str(gamma), method="fedcof", fedcof={"shrinkage": gamma}) for gamma in (0.1, 1.0, 0.1, 1e-5)]
    runs = planned([*gammas, cell("both", method="fedcof", fedcof={"shrinkage": 0.1, "between_class": True})])
    both = "fedcof@between-class=true"
    assert entries(runs) == [["fedcof", "fedcof@shrinkage=1.0", "fedcof", "fedcof@shrinkage=1e-05", both]]
    assert runs[0].settings["fedcof.shrinkage"] == 0.1


def test_numbers_of_shared_runs_are_those_of_runs_of_their_own(small: Mapping[str, Any], tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{"method": "fedcof", "fedcof.shrinkage": value} for value in (1.0, 1e-3)]
    options.append({"method": "fed3r", "fed3r.ridge-lambda": 0.01, "fed3r.between-class": False})
    columns = [Column(str(index), {}, entry=one["method"]) for index, one in enumerate(options)]
    # Without those of stages that these cells have not.
    own = {key: value for key, value in small.items() if not key.startswith("simulation.")}
    cells = [
        Cell(ROW, column, 0, {**own, "backbone": "random:tiny", **one, "seed": 0})
        for column, one in zip(columns, options, strict=True)
    ]
    preset = Preset("x", "x", "x", ("accuracy", "uplink_bytes"), (0,), "", {}, (), (ROW,), tuple(columns))

    def numbers(runs: list[PlannedRun]) -> dict[str, Mapping[str, float]]:
        found: dict[str, Mapping[str, float]] = {}
        for run in runs:
            folder = simulate({**of_app(run.settings), "output-dir": str(tmp_path)})
            found |= {one.column: one.values for one in cell_results(preset, run, folder, {}, Catalogue())}
        return found

    (shared,) = planned(cells)
    assert numbers([shared]) == numbers([PlannedRun.of(one) for one in cells])
