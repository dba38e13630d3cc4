"""Real processes, killed for real, in all stages: what goes on ends in the same bytes."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.server.gradient import GradientTraining
from tests.support.killed_run import Events, run_killed
from tests.support.simulation import Killed, clients, head_bytes, killed, read_json, simulate

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")

SETTINGS: dict[str, Any] = {
    "method": "fedncm,fed3r,fedcof,fedroot",
    "num_clients": 4,
    "partitioner": "dirichlet",
    "partition.samples-per-class": 40,
    "min_clients": 1,
    "fine_tune": "probe",
    "start_head": "fedncm",
    "num_server_rounds": 3,
    "optimizer": "fedadam",
    "holdout_fraction": 0.25,
    "device": "cpu",  # as the tests compute, and the process that is killed
    "feature_cache": "off",  # a later run would find it filled, and write less
}


def left(folder: Path) -> dict[str, Any]:
    """Return all that a run leaves, apart from times."""
    results = read_json(folder, "results.json")
    for entry in results["methods"].values():
        del entry["solve_seconds"]
    return {
        "heads": head_bytes(folder),
        "statistics": (folder / "statistics.safetensors").read_bytes(),
        "clients": [{**one, "seconds": 0.0} for one in clients(folder)],
        "results": {key: results[key] for key in ("methods", "wire_bytes_received")},
    }


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_runs_go_on_to_the_same_bytes(tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        events = Events(replace=patched.setattr)
        expected = left(simulate(tmp_path / "whole", app=events.app, **SETTINGS))
    points = sorted(random.Random(13).sample(range(3, events.number), kills))
    for point in points:
        assert run_killed(tmp_path / str(point), point, SETTINGS) == -signal.SIGKILL
        (folder,) = (tmp_path / str(point) / "runs").iterdir()
        if not (folder / "config.json").is_file():
            continue  # it had not begun
        simulate(tmp_path / str(point), resume=str(folder), **SETTINGS)
        assert left(folder) == expected, f"killed at event {point} of {events.number}"


def test_a_kill_after_the_last_round_of_a_probe_counts_no_byte_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients' loss decides whether the start is kept; it is asked again, and charged to the last round."""
    settings = {**SETTINGS, "method": "fedncm,fed3r"}
    whole = simulate(tmp_path / "whole", **settings)

    def dies(self: GradientTraining) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(GradientTraining, "result", dies)
        folder = killed(tmp_path / "cut", **settings)
    simulate(tmp_path / "cut", resume=str(folder), **settings)
    assert head_bytes(folder) == head_bytes(whole)
