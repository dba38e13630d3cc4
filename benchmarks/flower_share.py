"""What of a run's time is Flower's: ours against an app that imports torch and does nothing but send as many bytes.

    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 python -m benchmarks.flower_share --turns 3
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 python -m benchmarks.flower_share -c "method='fedncm'" --turns 3

In each turn `flwr run .`, `fedstats run` and `flwr run` of the app that does nothing take place one after another; the
first turn fills the feature cache and starts Flower's SuperLink, and does not count. Printed are the medians of the
whole commands' seconds, and of the ratios of each turn. Run it from the repository, on a machine with nothing else to
do; the SuperLink goes on running afterwards, as `flwr run` leaves it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROJECT = """
[project]
name = "nothing"
version = "0.1.0"
description = "Sends bytes."
license = { file = "LICENSE" }
dependencies = ["flwr[simulation]>=1.41.0,<2"]

[tool.flwr.app]
publisher = "benchmarks"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "nothing:server"
clientapp = "nothing:client"

[tool.flwr.app.config]
messages = 10
bytes = 1000000
"""
# Polls as fast as our server does; Flower's own send_and_receive waits for seconds.
APP = """
import time
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def train(msg, context):
    numbers = np.zeros(int(msg.content["size"]["bytes"]), np.uint8)
    return Message(RecordDict({"arrays": ArrayRecord({"a": Array(numbers)})}), reply_to=msg)


def exchange(grid, nodes, size):
    content = RecordDict({"size": ConfigRecord({"bytes": size})})
    waiting = list(grid.push_messages([Message(content, node, "train") for node in nodes]))
    while waiting:
        for reply in list(grid.pull_messages(waiting)):
            assert reply.has_content()
            waiting.remove(reply.metadata.reply_to_message_id)
        time.sleep(0.02)


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.02)
    exchange(grid, nodes, 1)
    number = int(context.run_config["messages"])
    exchange(grid, [nodes[index % len(nodes)] for index in range(number)], int(context.run_config["bytes"]) // number)
"""
# Clients in one message, as our server asks where replies are this small.
CLIENTS_PER_MESSAGE = 10


def write_app(place: Path) -> Path:
    """Write the app that does nothing and return its folder, whose name Flower checks."""
    folder = place / "nothing-app"
    folder.mkdir()
    for name, text in (("pyproject.toml", PROJECT), ("nothing.py", APP), ("LICENSE", "Apache-2.0\n")):
        (folder / name).write_text(text)
    return folder


def timed(command: Sequence[str], folder: Path) -> tuple[float, str]:
    """Run a command and return its seconds and its output; end with the output where it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")
    return time.perf_counter() - started, done.stdout


def size_of(output: str) -> tuple[int, int]:
    """Return the messages and bytes of a run of ours, by what it printed: its folder is the last line."""
    results = json.loads((Path(output.rstrip().splitlines()[-1]) / "results.json").read_text())
    return max(results["num_clients_asked"] // CLIENTS_PER_MESSAGE, 2), results["wire_bytes_received"]


def main(argv: Sequence[str] | None = None) -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--run-config", default="seed=0", help="of our run")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        here, folder = Path.cwd(), write_app(Path(place))
        size = ""

        def ours() -> tuple[float, str]:
            return timed(["flwr", "run", ".", "--stream", "-c", options.run_config], here)

        def in_process() -> tuple[float, str]:
            return timed([sys.executable, "-m", "fedstats_app.cli", "run", options.run_config], here)

        def nothing() -> tuple[float, str]:
            return timed(["flwr", "run", ".", "--stream", "-c", size], folder)

        rivals: dict[str, Callable[[], tuple[float, str]]] = {
            "flwr run": ours,
            "fedstats run": in_process,
            "do-nothing": nothing,
        }
        turns: list[dict[str, float]] = []
        for turn in range(options.turns + 1):
            seconds = {}
            for name, run in rivals.items():
                seconds[name], output = run()
                if name == "flwr run":
                    size = "messages={} bytes={}".format(*size_of(output))
            if turn:
                turns.append(seconds)
                print(json.dumps({name: round(value, 2) for name, value in seconds.items()}), flush=True)
    print(f"do-nothing sent {size}")
    for name in rivals:
        median = statistics.median(one[name] for one in turns)
        ratio = statistics.median(one[name] / one["do-nothing"] for one in turns)
        print(f"{name:12}  {median:6.1f} s  {ratio:5.2f} times do-nothing")


if __name__ == "__main__":
    main()
