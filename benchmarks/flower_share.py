"""What of a run's time is Flower's: ours against `benchmarks/do_nothing`, which sends as many bytes.

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
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PEER = Path(__file__).parent / "do_nothing"


def timed(command: Sequence[str], folder: Path) -> tuple[float, str]:
    """Run a command and return its seconds and its output; end with the output where it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")
    return time.perf_counter() - started, done.stdout


def size_of(output: str) -> str:
    """Return the other app's settings for what a run of ours sent, whose folder it printed last."""
    results = json.loads((Path(output.rstrip().splitlines()[-1]) / "results.json").read_text())
    clients = results["num_clients_asked"]
    return f"num-clients={clients} kilobytes={results['wire_bytes_received'] / clients / 1000:.3f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--run-config", default="seed=0", help="of our run")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    here, size = Path.cwd(), ""

    def ours() -> tuple[float, str]:
        return timed(["flwr", "run", ".", "--stream", "-c", options.run_config], here)

    def in_process() -> tuple[float, str]:
        return timed([sys.executable, "-m", "fedstats_app.cli", "run", options.run_config], here)

    def nothing() -> tuple[float, str]:
        return timed(["flwr", "run", ".", "--stream", "-c", size], PEER)

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
                size = size_of(output)
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
