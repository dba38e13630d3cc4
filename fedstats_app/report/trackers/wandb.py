"""W&B, offline: files in the run folder's `wandb`, which `wandb sync` uploads if somebody wants that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Before the import: nothing is told to anybody.
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_ERROR_REPORTING"] = "false"

# isort: split

import wandb

from fedstats_app.report.trackers.tracker import State, Tracker

PROJECT, STEP = "fedstats-app", "round"


def start(folder: Path, run_id: str, settings: Mapping[str, object]) -> Tracker:
    """Begin a run of the folder's name; going on, a second part of the same run."""
    return _WandB(folder, run_id, settings)


class _WandB:
    def __init__(self, folder: Path, run_id: str, settings: Mapping[str, object]) -> None:
        self._folder = folder
        self._run = wandb.init(
            project=PROJECT,
            id=folder.name,
            name=run_id,
            dir=str(folder),
            config=dict(settings),
            mode="offline",
            resume="allow",
            # What the run prints, how busy the machine is and what lies in its folders is nobody's business.
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                silent=True,
            ),
        )
        # Several trainings begin at round 0, and W&B's own steps only ever grow.
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({STEP: step, **values})

    def file(self, path: Path) -> None:
        self._run.save(str(path), base_path=str(self._folder), policy="now")

    def finish(self, state: State) -> None:
        self._run.finish(exit_code=0 if state == "completed" else 1)
