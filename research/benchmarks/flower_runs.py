"""Runs of benchmarks through Flower: what fails raises, and a SuperLink has time to start on a busy machine."""

from __future__ import annotations

import sys

from tests.support.flower import Finished, Simulation

TIMEOUT = 7200
# Flower gives its SuperLink 15 seconds, which a machine with other work does not keep.
PATIENT_LIST = (
    "import sys, flwr.cli.local_superlink as local; from flwr.cli.app import app; "
    "local.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0; sys.argv = ['flwr', 'list']; app()"
)


def finished(flower: Simulation, command: str) -> Finished:
    """Run a command line.

    Raises
    ------
    RuntimeError
        If it ends with an error.
    """
    done = flower.bash(command, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"the command ended with {done.returncode}:\n{done.output[-3000:]}")
    return done


def start_superlink(flower: Simulation) -> None:
    """Start the SuperLink of a home, so that the first run does not pay for it.

    Raises
    ------
    RuntimeError
        If it does not start.
    """
    finished(flower, f'{sys.executable} -c "{PATIENT_LIST}"')
