"""Real `flwr run`s with a SuperLink of their own, which is ended by its process id."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import REPOSITORY as REPOSITORY

# Marks of files with real runs.
IN_PROC = Path("/proc/self/cmdline").exists()
REAL_RUNS = [pytest.mark.skipif(not IN_PROC, reason="looks for background processes in /proc")]
COMPLETED = "[fedstats] completed; results are in"


@dataclass(frozen=True)
class Finished:
    """A run that ended: its output and the folder that it named last."""

    output: str
    returncode: int

    @property
    def said(self) -> list[str]:
        """The app's own lines."""
        return [line.rstrip() for line in self.output.splitlines() if line.startswith("[fedstats]")]

    @property
    def folder(self) -> Path:
        """The run folder, which a completed run prints in its last line, whatever Ray's workers say before it."""
        lines = [line.rstrip() for line in self.output.splitlines() if "pid=" not in line]
        if COMPLETED not in lines:
            raise AssertionError(f"the run did not complete:\n{self.output}")
        return Path(lines[lines.index(COMPLETED) + 1])

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def heads(self) -> dict[str, bytes]:
        """Every head's file by its name."""
        return {path.stem: path.read_bytes() for path in sorted((self.folder / "heads").glob("*.safetensors"))}


@dataclass(frozen=True)
class Simulation:
    """A home of its own for Flower, results and caches."""

    home: Path
    environment: dict[str, str]

    def bash(self, command: str, *, cwd: Path = REPOSITORY, timeout: float = 600) -> Finished:
        """Run a command line as a user would type it."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.stdout, done.returncode)


@contextmanager
def simulation(home: Path) -> Iterator[Simulation]:
    """Give Flower a home and ports of its own, and end the SuperLink that runs started there.

    Runs use this environment, as README advises: Flower would otherwise build a second one for every run, with
    whatever versions it resolves that day, and the headers of heads name versions.
    """
    home.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2)
    environment = {**environment_at(home, "flwr_", "fedstats_", "omp_")}
    environment |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(home / "flwr")}
    environment |= {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]), "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1])}
    try:
        yield Simulation(home, environment)
    finally:
        for pid in superlinks_of(home):
            os.kill(pid, signal.SIGTERM)


def as_flower_ends(error: BaseException | None) -> None:
    """Log what Flower's process of a ServerApp logs when it ends, to standard error as it does."""
    logger, handler = logging.getLogger("flwr"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        if error is not None:
            logger.error("%s raised an exception", "Simulation", exc_info=error)
        level, message = (logging.INFO, "") if error is None else (logging.ERROR, "Exit Code: 700\n\nAn unhandled")
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, message, (), None, "flwr_exit"))
    finally:
        logger.removeHandler(handler)


def environment_at(home: Path, *left_out: str) -> dict[str, str]:
    """Return the environment of a user's terminal, with this Python's commands on the path, without some names."""
    return {
        **{name: value for name, value in os.environ.items() if not name.lower().startswith(left_out)},
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "200",
    }


def processes_naming(*texts: str) -> list[int]:
    """Return the processes in whose command line all texts occur."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if all(text.encode() in arguments for text in texts):
            found.append(int(entry.name))
    return found


def superlinks_of(home: Path) -> list[int]:
    """Return the ids of SuperLink processes whose log file lies in this home: those that we started, and no others."""
    return processes_naming("flower-superlink", str(home / "flwr"))


def free_ports(number: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything; the parent is the second field after it.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it ended meanwhile
        children.setdefault(parent, []).append(int(entry.name))
    found, unseen = [], [pid]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found
