"""Many small clients through `flwr run`: time beside that of an app that does nothing, and memory of its processes.

    python -m benchmarks.scale --sizes /data/client_sizes.csv --supernodes 2 100 --method fedncm,fedcof,fedroot

Sizes are those of the clients, a line for each (docs/performance.md); features are made up, d = 1280. The first run
fills the feature cache and is not counted. Then both apps run in turn; the other one gets as many messages, of the mean
size that the first one's replies had.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.flower import REPOSITORY, Finished, Simulation, simulation

PEER = REPOSITORY / "benchmarks" / "do_nothing"
# What the two kinds of processes have in their command lines: the ServerApp and Ray's driver, and a client's worker.
SERVER, WORKER = "flwr-simulation", "ray::"


@dataclass(frozen=True)
class Measurement:
    """One number of SuperNodes.

    Attributes
    ----------
    clients, supernodes : int
        How many.
    method : str
        What was asked for.
    seconds, peer_seconds : float
        Medians of whole `flwr run`s.
    ratio : float
        Of these.
    kilobytes : float
        Mean of a client's reply.
    server_megabytes, peer_server_megabytes, worker_megabytes : float
        Largest resident memory of a process, libraries included.
    """

    clients: int
    supernodes: int
    method: str
    seconds: float
    peer_seconds: float
    ratio: float
    kilobytes: float
    server_megabytes: float
    peer_server_megabytes: float
    worker_megabytes: float


class PeakMemory:
    """Watches the processes of one Flower home: the largest resident memory by kind, in MB, libraries included.

    Those that are there before are of an earlier run, and left out.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._over = f"FLWR_HOME={home}".encode(), threading.Event()
        self._earlier = {*Path("/proc").glob("[0-9]*")}
        self.peaks: dict[str, float] = {SERVER: 0.0, WORKER: 0.0}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            for process in {*Path("/proc").glob("[0-9]*")} - self._earlier:
                with suppress(OSError, ValueError, StopIteration):  # it may end any moment
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    kind = next(one for one in self.peaks if one in command)
                    if self._home in (process / "environ").read_bytes():
                        status = (process / "status").read_text()
                        peak = float(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
                        self.peaks[kind] = max(self.peaks[kind], peak)


@dataclass(frozen=True)
class _Run:
    """One `flwr run`: its seconds, what it printed, and the peaks of its processes."""

    seconds: float
    finished: Finished
    peaks: dict[str, float]


def _run(flower: Simulation, app: Path, supernodes: int, settings: str) -> _Run:
    with PeakMemory(Path(flower.environment["FLWR_HOME"])) as memory:
        started = time.perf_counter()
        finished = flower.bash(
            f'flwr run {app} --stream --federation-config "num-supernodes={supernodes}" --run-config "{settings}"',
            timeout=7200,
        )
        seconds = time.perf_counter() - started
    if finished.returncode:
        raise RuntimeError(f"the run ended with {finished.returncode}:\n{finished.output[-3000:]}")
    return _Run(seconds, finished, memory.peaks)


def measure(sizes: Path, num_classes: int, supernodes: int, method: str, repeats: int, settings: str) -> Measurement:
    """Run both apps in turn, ours once before."""
    number = sum(1 for line in sizes.read_text().splitlines()[1:] if line and not line.startswith("test,"))
    own = (
        f"method='{method}' dataset='synthetic:{num_classes}:{sizes}' partitioner='natural-id' "
        f"partition-column='client' num-clients=0 backbone='random:wide' plots=false {settings}"
    )
    with tempfile.TemporaryDirectory() as folder, simulation(Path(folder)) as flower:
        flower.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        results = _run(flower, REPOSITORY, supernodes, own).finished.json("results.json")
        if results["num_clients_merged"] != number:
            raise RuntimeError(f"all {number} clients must be in the heads, got {results['num_clients_merged']}")
        kilobytes = results["wire_bytes_received"] / number / 1000
        other = f"num-clients={number} kilobytes={kilobytes:.3f}"
        pairs = [
            (_run(flower, REPOSITORY, supernodes, own), _run(flower, PEER, supernodes, other)) for _ in range(repeats)
        ]
    ours, peers = zip(*pairs, strict=True)
    seconds, peer_seconds = (statistics.median(one.seconds for one in runs) for runs in (ours, peers))
    return Measurement(
        number,
        supernodes,
        method,
        round(seconds, 1),
        round(peer_seconds, 1),
        round(seconds / peer_seconds, 2),
        round(kilobytes, 1),
        round(max(one.peaks[SERVER] for one in ours)),
        round(max(one.peaks[SERVER] for one in peers)),
        round(max(one.peaks[WORKER] for one in ours)),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON for each number of SuperNodes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=Path, required=True, help="CSV file: client,num_images")
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--supernodes", type=int, nargs="+", default=[2, 100])
    parser.add_argument("--method", default="fedncm,fedcof,fedroot")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settings", default="", help="more run-config")
    options = parser.parse_args(arguments)
    for supernodes in options.supernodes:
        sizes = options.sizes.absolute()
        found = measure(sizes, options.classes, supernodes, options.method, options.repeats, options.settings)
        print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
