"""Simulations: numpy finds the same errors, and their numbers come from the statistics of one run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedstats_app import simulate
from fedstats_app.report.training_record import read_rounds
from fedstats_app.statistics import FeatureStatistics
from research.reproduce.catalogue import Catalogue, PresetError
from research.reproduce.from_statistics import statistics_error
from research.reproduce.outcome import cell_results
from research.reproduce.plan import cells_of, planned
from research.reproduce.preset import Column, Preset, Row
from research.reproduce.running import make_runs
from research.reproduce.simulated import complete, run_of_app

COLUMNS = {
    "FedCOF": {"method": "fedcof"},
    "ridge": {"method": "fed3r", "fed3r.between-class": False},
    "oracle": {"method": "fedcof,fed3r", "simulation.statistics": "oracle"},
    "diagonal": {"method": "fedcof,fed3r", "simulation.statistics": "oracle", "simulation.covariance": "diagonal"},
    "no noise": {"method": "fedcof", "simulation.statistics": "count-noise", "simulation.epsilon": 1.0},
    "noise": {"method": "fedcof", "simulation.statistics": "count-noise", "simulation.noise": "laplace"},
    "means": {"method": "fed3r", "simulation.statistics": "statistics-error"},
    "covariance": {"method": "fed3r", "simulation.statistics": "statistics-error", "simulation.quantity": "covariance"},
}


def preset(columns: Mapping[str, Mapping[str, Any]]) -> Preset:
    made = tuple(
        Column(name, keys, "methods" if len(keys) < 2 or name == "ridge" else "simulated", str(keys["method"]))
        for name, keys in columns.items()
    )
    measures = ("accuracy", "uplink_bytes", "error")
    keys = {"fedcof.shrinkage": 0.1}
    return Preset("own", "", "", measures, (0,), "", keys, (), (Row("row", "", {}),), made)


def test_errors_are_those_that_numpy_finds() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 4)), rng.permutation(n) % 3) for n in (30, 40)]
    found = statistics_error(
        *(FeatureStatistics.from_features(torch.from_numpy(x), torch.from_numpy(y), 3, gram=True) for x, y in parts)
    )
    means = [np.stack([x[y == c].mean(axis=0) for c in range(3)]) for x, y in parts]
    covariances = [np.cov(x, rowvar=False) for x, _ in parts]
    for name, (mine, true) in {"class_means": means, "covariance": covariances}.items():
        assert found[name]["norm"] == pytest.approx(np.linalg.norm(mine - true), rel=1e-9)
        assert found[name]["relative"] == pytest.approx(np.linalg.norm(mine - true) / np.linalg.norm(true), rel=1e-9)


def test_all_come_from_one_run(small: Mapping[str, Any], tmp_path: Path) -> None:
    keys = {key: value for key, value in small.items() if "@" not in key}  # those of stages that no cell has
    own = preset(COLUMNS)
    (run,) = planned(
        cells_of(own, own.rows, own.columns, [0], {**keys, "partitioner": "dirichlet", "partition.flips": "both"})
    )
    folder = make_runs([run], tmp_path, simulate, print)[run.name]
    found = {one.column: one.values for one in cell_results(own, run, folder, {}, Catalogue())}
    assert found["no noise"]["accuracy"] == found["FedCOF"]["accuracy"]
    assert found["oracle"]["uplink_bytes"] == found["FedCOF"]["uplink_bytes"] * 33
    assert found["diagonal"]["uplink_bytes"] == found["FedCOF"]["uplink_bytes"] * 2
    assert min(found[name]["accuracy"] for name in ("noise", "oracle", "diagonal")) > 50
    assert 0 < found["means"]["error"] < 1e-5 and 0 < found["covariance"]["error"] < 1e-5


def test_an_unknown_simulation_is_refused() -> None:
    own = preset({"other": {"method": "fedcof", "simulation.statistics": "orakel"}})
    with pytest.raises(PresetError, match="must be one of oracle, count-noise, statistics-error, got 'orakel'"):
        cells_of(own, own.rows, own.columns, [0], {})


def test_a_simulated_average_is_the_training_of_a_run(small: Mapping[str, Any], tmp_path: Path) -> None:
    settings = {**{key: value for key, value in small.items() if not key.startswith("simulation.")}}
    settings |= {"method": "fedncm", "fine-tune": "full", "start-head": "random", "num-server-rounds": 2}
    settings |= {"temperature": 1.0, "learning-rate": 0.05, "training.clip": 0.0, "training.max-share": 1.0}
    simulated = {**settings, "simulation.server": "average"}
    folders = [
        simulate({**run_of_app(one), "output-dir": str(tmp_path / str(number))})
        for number, one in enumerate((settings, simulated))
    ]
    complete(folders[1], simulated, print)
    mine, theirs = (read_rounds(folder / "rounds.jsonl") for folder in folders)
    assert [one.round for one in theirs] == [0, 1, 2]
    assert [one.loss for one in theirs] == pytest.approx([one.loss for one in mine], rel=1e-4)
    assert mine[0].loss != pytest.approx(mine[2].loss, rel=1e-3)


def test_after_the_last_round_of_some_clients_the_heads_are_those_of_the_run(
    small: Mapping[str, Any], tmp_path: Path
) -> None:
    keys = {key: value for key, value in small.items() if not key.startswith("simulation.")}
    settings = {**keys, "method": "fedncm,fed3r", "wire-dtype": "float64", "simulation.participation": 0.5}
    folder = simulate({**run_of_app(settings), "output-dir": str(tmp_path)})
    complete(folder, settings, print)
    results = json.loads((folder / "results.json").read_text())
    assert list(results["participation"]) == ["1", "2"]
    final = {name: entry["accuracy"] for name, entry in results["methods"].items()}
    assert results["participation"]["2"] == final != results["participation"]["1"]
