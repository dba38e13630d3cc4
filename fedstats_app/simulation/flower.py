"""What an in-process run needs of Flower beyond its public API; every other module goes without.

Two things: Flower builds no message outside of a task, and only a SuperLink gives messages their ids.
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

# Whose insides were looked at and tried; in both they are the same.
FLOWER_VERSIONS = ("1.41", "1.42")
# The sender that Flower gives to messages of a ServerApp.
SERVER_NODE_ID = 1

_one_run = threading.Lock()


class UnknownFlower(RuntimeError):
    """A version of Flower that was not tried in one process."""


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


def give_id(msg: Message, message_id: str) -> None:
    """Give a message its id, which Flower's SuperLink does."""
    msg.metadata.__dict__["_message_id"] = message_id
