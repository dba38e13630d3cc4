"""MLflow: a database and artifacts in the run folder's `mlruns`, without a server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

# Before the import: nothing is told to anybody.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

# isort: split

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedstats_app.report.trackers.tracker import State, Tracker

EXPERIMENT, DATABASE = "fedstats-app", "mlflow.db"
_STATUS = {"completed": "FINISHED", "failed": "FAILED"}


def start(folder: Path, run_id: str, settings: Mapping[str, object]) -> Tracker:
    """Begin the only run of the folder's database, or go on with it."""
    return _MLflow(folder / "mlruns", run_id, settings)


class _MLflow:
    def __init__(self, folder: Path, run_id: str, settings: Mapping[str, object]) -> None:
        folder.mkdir(exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / DATABASE}")
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            identifier = self._client.create_experiment(EXPERIMENT, (folder / "artifacts").as_uri())
        else:
            identifier = experiment.experiment_id
        before = self._client.search_runs([identifier], max_results=1)
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return  # parameters can be set once
        self._run = self._client.create_run(identifier, run_name=run_id).info.run_id
        self._client.log_batch(self._run, params=[Param(key, str(value)) for key, value in settings.items()])

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def finish(self, state: State) -> None:
        self._client.set_terminated(self._run, _STATUS[state])
