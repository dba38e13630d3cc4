"""A whole run in this process: the same ServerApp and ClientApp, without Ray, servers or further processes.

This needs of Flower, beyond its public API, that messages are built outside of Flower's own tasks (`_task`).
"""

from __future__ import annotations

import importlib.metadata
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedstats_app import client_app, server_app
from fedstats_app.grid.in_process import InProcessGrid
from fedstats_app.server.lifetime import IN_PROCESS, LastWord, folder_of
from fedstats_app.settings.app_config import AppConfig

# As in Flower's simulation.
DEFAULT_SUPERNODES = 2
# Whose insides were looked at and tried; in both they are the same.
FLOWER_VERSIONS = ("1.41", "1.42")
# The sender that Flower gives to messages of a ServerApp.
SERVER_NODE_ID = 1

_one_run = threading.Lock()


class UnknownFlower(RuntimeError):
    """A version of Flower that was not tried in one process."""


def simulate(
    run_config: Mapping[str, str | int | float | bool] | None = None, *, supernodes: int | None = None
) -> Path:
    """Run the app in this process: the same ServerApp and ClientApp as `flwr run`, and the same results to the byte.

    What the run says is printed, as with `flwr run . --stream`. Ctrl-C ends it.

    Parameters
    ----------
    run_config : mapping, optional
        As of `flwr run --run-config`, such as ``{"num-clients": 20, "method": "fedcof"}``; other keys keep the defaults
        of pyproject.toml.
    supernodes : int, optional
        How many nodes the clients are spread over, by default 2; results do not depend on it.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    ConfigError
        If a key or a value is wrong; nothing was started.
    UnknownFlower
        If Flower has another version than this was tried with.
    RuntimeError
        If another run is under way in this process.
    Exception
        What the run failed with; it is in the run folder's status, too.
    """
    if supernodes is not None and (type(supernodes) is not int or supernodes < 1):
        raise ValueError(f"supernodes: must be a whole number of at least 1, got {supernodes!r}")
    check_flower()
    config = {**AppConfig().to_run_config(), **(run_config or {})}
    AppConfig.from_run_config(config)
    run_id = secrets.randbits(63)
    context = Context(run_id, SERVER_NODE_ID, {IN_PROCESS: True}, RecordDict(), config)
    with task(run_id):
        grid = InProcessGrid(client_app.app, supernodes or DEFAULT_SUPERNODES, run_id, config)
        try:
            server_app.app(grid, context)
        finally:
            grid.close()
            LastWord.forget()
    return folder_of(context)


def check_flower(version: str = "") -> None:
    """Refuse versions of Flower whose insides nobody has looked at.

    Parameters
    ----------
    version : str
        Such as "1.41.0"; by default the installed one.

    Raises
    ------
    UnknownFlower
        If it is another one.
    """
    version = version or importlib.metadata.version("flwr")
    if ".".join(version.split(".")[:2]) not in FLOWER_VERSIONS:
        raise UnknownFlower(
            f"a run in one process needs Flower {' or '.join(FLOWER_VERSIONS)}, got {version}: use `flwr run .`, or "
            f'pip install "flwr=={FLOWER_VERSIONS[-1]}.*"'
        )


@contextmanager
def task(run_id: int) -> Iterator[None]:
    """Let this process build messages of a run, as Flower's processes for tasks do.

    Raises
    ------
    RuntimeError
        If another run is under way in this process.
    """
    if not _one_run.acquire(blocking=False):
        raise RuntimeError("another run is under way in this process: one at a time")
    before = (TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id)
    try:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, run_id, SERVER_NODE_ID
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before
        _one_run.release()
