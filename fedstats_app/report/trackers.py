"""Experiment trackers of others behind one small interface: TensorBoard, MLflow and W&B, all into the run folder.

A tracker's library is imported where one is opened, which is on the server alone.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from fedstats_app.base.option import Options, option, some_of

State = Literal["completed", "failed"]
PROJECT = "fedstats-app"  # W&B's word; MLflow's is experiment
MLFLOW_DATABASE = "mlflow.db"
WANDB_STEP = "round"


class Tracker(Protocol):
    """One run in one tracker; making it, of folder, run id and settings, begins the run there or goes on with it."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers by name, at a step; steps can begin anew, under other names."""

    def file(self, path: Path) -> None:
        """Log a file of the run folder: text, JSON or a PNG."""

    def finish(self, state: State) -> None:
        """End the run and write what is not written yet."""


class _TensorBoard:
    """Event files in the run folder's `tensorboard`; several are shown as one run."""

    def __init__(self, folder: Path, run_id: str, settings: Mapping[str, object]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        rows = "".join(f"| {key} | {value} |\n" for key, value in settings.items())
        self._writer.add_text("settings", f"| key | value |\n|---|---|\n{rows}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def file(self, path: Path) -> None:
        from PIL import Image

        if path.suffix == ".png":
            with Image.open(path) as image:
                self._writer.add_image(path.stem, np.asarray(image.convert("RGB")), dataformats="HWC")
        else:
            self._writer.add_text(path.name, path.read_text(encoding="utf-8"))

    def finish(self, state: State) -> None:
        self._writer.add_text("state", state)
        self._writer.close()


class _MLflow:
    """A database and artifacts in the run folder's `mlruns`, without a server: the only run there."""

    def __init__(self, folder: Path, run_id: str, settings: Mapping[str, object]) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before the import, so that nothing is sent
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        folder = folder / "mlruns"
        folder.mkdir(exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / MLFLOW_DATABASE}")
        experiment = self._client.get_experiment_by_name(PROJECT)
        identifier = experiment and experiment.experiment_id
        identifier = identifier or self._client.create_experiment(PROJECT, (folder / "artifacts").as_uri())
        before = self._client.search_runs([identifier], max_results=1)
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return  # parameters can be set once
        self._run = self._client.create_run(identifier, run_name=run_id).info.run_id
        self._client.log_batch(self._run, params=[Param(key, str(value)) for key, value in settings.items()])

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def finish(self, state: State) -> None:
        self._client.set_terminated(self._run, "FINISHED" if state == "completed" else "FAILED")


class _WandB:
    """Offline: files in the run folder's `wandb`, which only `wandb sync` uploads."""

    def __init__(self, folder: Path, run_id: str, settings: Mapping[str, object]) -> None:
        # Before the import, so that nothing is sent.
        os.environ["WANDB_MODE"] = "offline"
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        self._folder = folder
        # What the run prints, how busy the machine is and what lies in its folders is private.
        private = wandb.Settings(
            **{"console": "off", "silent": True, "mode": "offline"},
            **dict.fromkeys(("disable_git", "disable_code", "x_disable_stats", "x_disable_meta"), True),
        )
        # A run that goes on is a second part of the same run.
        same = {"id": folder.name, "name": run_id, "resume": "allow"}
        self._run = wandb.init(project=PROJECT, dir=str(folder), config=dict(settings), settings=private, **same)
        # Several trainings begin at round 0, and W&B's own steps only ever grow.
        self._run.define_metric("*", step_metric=WANDB_STEP)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({WANDB_STEP: step, **values})

    def file(self, path: Path) -> None:
        self._run.save(str(path), base_path=str(self._folder), policy="now")

    def finish(self, state: State) -> None:
        self._run.finish(exit_code=0 if state == "completed" else 1)


# By name, which is also that of the library it needs.
TRACKERS: dict[str, Callable[[Path, str, Mapping[str, object]], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}


@dataclass(frozen=True)
class TrackerOptions(Options):
    """Trackers: where the server writes metrics, beside the run folder's own files."""

    tracker: str = option(
        "none", some_of(tuple(TRACKERS), "none"), "some of tensorboard,mlflow,wandb (offline), each an extra"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers, in the order asked for."""
        return () if self.tracker == "none" else tuple(self.tracker.split(","))


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose library is missing, before a run begins, with a ValueError that says what to install."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"tracker: {', '.join(missing)} is not installed on the server: "
            f'pip install "fedstats-app[{",".join(missing)}]", or tracker = "none"'
        )


class Trackers:
    """Any number of trackers, all in a run folder. One that fails is named once and then left alone.

    Raises
    ------
    ValueError
        As :func:`check_installed`.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        run_id: str,
        settings: Mapping[str, object],
        say: Callable[[str], None],
    ) -> None:
        check_installed(names)
        self._say = say
        self._open: dict[str, Tracker] = {}
        for name in names:
            with self._guarded(name):
                self._open[name] = TRACKERS[name](folder, run_id, settings)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers; see :class:`Tracker`."""
        self._each("scalars", values, step)

    def file(self, path: Path) -> None:
        """Log a file; see :class:`Tracker`."""
        self._each("file", path)

    def finish(self, state: State) -> None:
        """End the run in all of them; see :class:`Tracker`."""
        self._each("finish", state)
        self._open.clear()

    def _each(self, action: str, *arguments: object) -> None:
        for name in list(self._open):
            with self._guarded(name):
                getattr(self._open[name], action)(*arguments)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Leave a tracker alone that fails: whatever goes wrong in another's library, the run continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # see above
            self._open.pop(name, None)
            self._say(f"tracker {name} failed and gets nothing more of this run: {type(error).__name__}: {error}")
