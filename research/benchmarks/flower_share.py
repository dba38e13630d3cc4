"""Flower's share of a run's time: ours against `research/benchmarks/do_nothing`, which sends as many bytes.

    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 python -m research.benchmarks.flower_share --turns 3
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 python -m research.benchmarks.flower_share -c "method='fedncm'"

In each turn `flwr run .`, `fedstats run` and `flwr run` of the app that does nothing take place one after another; the
first turn fills the feature cache and starts Flower's SuperLink, and does not count. Printed are the medians of the
seconds of whole commands, and of ours until the table of results stands, and of the ratios of each turn to the whole
command of the app that does nothing. Run it from a clone without an environment in it, on a machine with nothing else
to do, with torch's files compiled (`pip` does so, `uv` with `--compile-bytecode`); the SuperLink keeps running
afterwards, as `flwr run` leaves it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from research.benchmarks.lines import parser_of

PEER = Path(__file__).parent / "do_nothing"
# Beginning of the table's first line.
TABLE = "method "


class Timed(NamedTuple):
    """Seconds of a whole command, seconds until its table of results stood, if it prints one, and its output."""

    seconds: float
    until_table: float | None
    output: str


def timed(command: Sequence[str], folder: Path) -> Timed:
    """Run a command; end with its output where it fails."""
    started, until_table, lines = time.perf_counter(), None, []
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            if until_table is None and line.startswith(TABLE):
                until_table = time.perf_counter() - started
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{''.join(lines)}")
    return Timed(time.perf_counter() - started, until_table, "".join(lines))


def size_of(output: str) -> str:
    """Return the other app's settings for what a run of ours sent, whose folder it printed last."""
    results = json.loads((Path(output.rstrip().splitlines()[-1]) / "results.json").read_text())
    clients = results["num_clients_asked"]
    return f"num-clients={clients} kilobytes={results['wire_bytes_received'] / clients / 1000:.3f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Time and print."""
    parser = parser_of(__doc__)
    parser.add_argument("-c", "--run-config", default="seed=0", help="of our run")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    here, size = Path.cwd(), ""
    if any(here.glob("*/pyvenv.cfg")):
        sys.exit("there is an environment in this folder, whose files Flower looks at: take a clone without one")

    def ours() -> Timed:
        return timed(["flwr", "run", ".", "--stream", "-c", options.run_config], here)

    def in_process() -> Timed:
        return timed([sys.executable, "-m", "fedstats_app.cli", "run", options.run_config], here)

    def nothing() -> Timed:
        return timed(["flwr", "run", ".", "--stream", "-c", size], PEER)

    rivals: dict[str, Callable[[], Timed]] = {"flwr run": ours, "fedstats run": in_process, "do-nothing": nothing}
    turns: list[dict[str, float]] = []
    for turn in range(options.turns + 1):
        seconds = {}
        for name, run in rivals.items():
            done = run()
            seconds[name] = done.seconds
            if done.until_table is not None:
                seconds[f"{name}, until its table"] = done.until_table
            if name == "flwr run":
                size = size_of(done.output)
        if turn:
            turns.append(seconds)
            print(json.dumps({name: round(value, 2) for name, value in seconds.items()}), flush=True)
    print(f"do-nothing sent {size}")
    for name in turns[0] if turns else ():
        median = statistics.median(turn[name] for turn in turns)
        ratio = statistics.median(turn[name] / turn["do-nothing"] for turn in turns)
        print(f"{name:30}  {median:6.1f} s  {ratio:5.2f} times do-nothing")


if __name__ == "__main__":
    main()
