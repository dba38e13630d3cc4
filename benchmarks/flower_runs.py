"""Runs of benchmarks through Flower: what fails raises, and a SuperLink that comes too late is started again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from tests.support.flower import Finished, Simulation, superlinks_of

ATTEMPTS = 5
TIMEOUT = 7200
# Flower gives it 15 seconds.
TOO_LATE = "Failed to start local SuperLink"


def finished(flower: Simulation, command: str) -> Finished:
    """Run a command line.

    Raises
    ------
    RuntimeError
        If it ends with an error.
    """
    done = flower.bash(command, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"the run ended with {done.returncode}:\n{done.output[-3000:]}")
    return done


def start_superlink(flower: Simulation) -> None:
    """Start the SuperLink of a home, so that the first run does not pay for it.

    Raises
    ------
    RuntimeError
        If it does not start.
    """
    for _ in range(ATTEMPTS):
        done = flower.bash("flwr list", timeout=TIMEOUT)
        if TOO_LATE not in done.output:
            return
        for pid in superlinks_of(flower.home):
            os.kill(pid, signal.SIGTERM)
        shutil.rmtree(Path(flower.environment["FLWR_HOME"]), ignore_errors=True)
    raise RuntimeError(f"Flower's SuperLink did not start in {ATTEMPTS} attempts:\n{done.output[-3000:]}")
