"""The app that does nothing is one that Flower builds, and it sends what it is told to."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from benchmarks import flower_share
from tests.support.local_grid import LocalGrid


def test_flower_builds_it(tmp_path: Path) -> None:
    folder = flower_share.write_app(tmp_path)
    command = [str(Path(sys.executable).with_name("flwr")), "build", "--app", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_sends_so_many_messages_of_so_many_bytes() -> None:
    namespace: dict[str, Any] = {}
    exec(flower_share.APP, namespace)
    sent: list[int] = []

    def client(msg: Message, context: Context) -> Message:
        reply: Message = namespace["client"](msg, context)
        sent.append(len(reply.content.array_records["arrays"]["a"].data))
        return reply

    grid = LocalGrid(client, [{}, {}])
    namespace["server"](grid, Context(1, 1, {}, RecordDict(), {"messages": 5, "bytes": 5000}))
    # One byte each to begin with, and Flower's header of 128 bytes.
    assert sent == [129, 129, *[1128] * 5]
