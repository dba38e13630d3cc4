"""A run of the whole app in a process of its own that kills itself at the n-th thing that it writes or is asked.

`python -m tests.support.killed_run FOLDER EVENT SETTINGS`, with settings as JSON. A kill is SIGKILL: nothing that comes
after it runs.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message

from fedstats_app import client_app
from tests.support.commands import REPOSITORY
from tests.support.simulation import simulate
from tests.support.small_sample import use_an_eighth


class Events:
    """Counts what happens in a run, and kills the process at one of them; the first is 1."""

    def __init__(self, deadly: int = 0, replace: Callable[[Any, str, Any], None] = setattr) -> None:
        self.number, self._deadly = 0, deadly
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink")):
            replace(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.happens()
            return real(*args, **options)

        return call

    def happens(self) -> None:
        self.number += 1
        if self.number == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def app(self, msg: Message, context: Context) -> Message:
        self.happens()
        return client_app.app(msg, context)


def run_killed(folder: Path, event: int, settings: dict[str, Any]) -> int:
    """Run a process of this module and return its exit code."""
    command = [sys.executable, "-m", __name__, str(folder), str(event), json.dumps(settings)]
    # Sums round differently on another number of threads.
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, check=False, timeout=600).returncode


def main() -> None:
    folder, event, settings = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    use_an_eighth()  # as the tests do, which go on with what is left
    simulate(folder, app=Events(event).app, **settings)


if __name__ == "__main__":
    main()
