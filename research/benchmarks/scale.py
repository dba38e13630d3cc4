"""Many small clients through `flwr run`: time beside that of an app that does nothing, and memory of its processes.

    python -m research.benchmarks.scale --sizes /data/client_sizes.csv --supernodes 2 100 --method fedncm,fedcof,fedroot

Sizes are those of the clients, a line for each (research/performance.md); features are made up, d = 1280. The first run
takes place in one process (`fedstats run`), fills the feature cache and is not counted; the heads of all others must be
the same to the byte. Then both apps run in turn; the other one gets as many messages, of the mean size that the first
one's replies had.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from research.benchmarks.flower_runs import finished, start_superlink
from research.benchmarks.lines import parser_of, printed
from research.benchmarks.made_up import TEST, read_sizes, write_federation
from tests.support.flower import REPOSITORY, Finished, Simulation, simulation

PEER = REPOSITORY / "research" / "benchmarks" / "do_nothing"
# What the two kinds of processes have in their command lines: the ServerApp and Ray's driver, and a client's worker.
SERVER, WORKER = "flwr-simulation", "ray::ClientAppActor"


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
    clients_per_second : float
        By the seconds in which clients were asked, the heads solved, and everything evaluated and written.
    kilobytes : float
        Mean of a client's reply.
    server_megabytes, peer_server_megabytes, worker_megabytes : float
        Largest resident memory of a process, libraries included.
    workers : int
        Processes that Flower started for clients.
    cpu_seconds, peer_cpu_seconds : float
        Processor time of the server and its workers, Flower's part of these processes included.
    load : float
        Programs that wanted a core, on average over the last minute of the last run.
    """

    clients: int
    supernodes: int
    method: str
    seconds: float
    peer_seconds: float
    ratio: float
    clients_per_second: float
    kilobytes: float
    server_megabytes: float
    peer_server_megabytes: float
    worker_megabytes: float
    workers: int
    cpu_seconds: float
    peer_cpu_seconds: float
    load: float


class PeakMemory:
    """Watches the processes of one Flower home: largest resident memory, in MB, libraries included, and processor time.

    Those that are there before are of an earlier run, and left out.

    Attributes
    ----------
    peaks : dict
        From a text in a process's command line to the largest of those processes.
    cpu_seconds : dict
        From the same texts, and from each such process's id, to the processor time that it has taken.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._over = f"FLWR_HOME={home}\0".encode(), threading.Event()
        self._earlier = {*Path("/proc").glob("[0-9]*")}
        self.peaks: dict[str, float] = {SERVER: 0.0, WORKER: 0.0}
        self.cpu_seconds: dict[str, dict[str, float]] = {SERVER: {}, WORKER: {}}
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
                        # The name, in brackets, may hold anything; user and system time are the 12th and 13th after it.
                        ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                        self.cpu_seconds[kind][process.name] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Run:
    """One run: its seconds, what it printed, and its processes."""

    seconds: float
    finished: Finished
    memory: PeakMemory


def _run(flower: Simulation, command: str) -> _Run:
    with PeakMemory(Path(flower.environment["FLWR_HOME"])) as memory:
        started = time.perf_counter()
        done = finished(flower, command)
        seconds = time.perf_counter() - started
    return _Run(seconds, done, memory)


def _flwr_run(flower: Simulation, app: Path, supernodes: int, settings: str) -> _Run:
    return _run(
        flower, f'flwr run {app} --stream --federation-config "num-supernodes={supernodes}" --run-config "{settings}"'
    )


def cpu_seconds(run: _Run) -> float:
    """Return the processor time of a run's processes."""
    return sum(sum(of_kind.values()) for of_kind in run.memory.cpu_seconds.values())


def heads_of(folder: Path) -> dict[str, bytes]:
    """Return the files of the heads in a run folder."""
    return {file.name: file.read_bytes() for file in folder.glob("heads/*.safetensors")}


def measure(
    sizes: Path, num_classes: int, supernodes: int, method: str, repeats: int, settings: str, cache: Path | None
) -> Measurement:
    """Run both apps in turn, ours once before in one process.

    Raises
    ------
    RuntimeError
        If a run fails, a client is not in the heads, or heads differ from those of the run in one process.
    """
    number = len(read_sizes(sizes).keys() - {TEST})
    with tempfile.TemporaryDirectory() as folder, simulation(Path(folder)) as flower:
        write_federation(sizes, num_classes, Path(folder) / "data")
        own = (
            f"method='{method}' dataset='parquet:{folder}/data' partitioner='natural-id' "
            f"partition-column='client' num-clients=0 backbone='random:wide' plots=false {settings}"
        )
        flower.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        flower.environment["FEDSTATS_CACHE"] = str(cache or Path(folder) / "cache")
        start_superlink(flower)
        command = f'{sys.executable} -m fedstats_app.cli run --supernodes {supernodes} "{own}"'
        expected = heads_of(_run(flower, command).finished.folder)
        pairs = []
        for _ in range(repeats):
            ours = _flwr_run(flower, REPOSITORY, supernodes, own)
            results = ours.finished.json("results.json")
            if results["num_clients_merged"] != number:
                raise RuntimeError(f"all {number} clients must be in the heads, got {results['num_clients_merged']}")
            if heads_of(ours.finished.folder) != expected or not expected:
                raise RuntimeError("the heads must be those of the run in one process, to the byte")
            kilobytes = results["wire_bytes_received"] / number / 1000
            peer = _flwr_run(flower, PEER, supernodes, f"num-clients={number} kilobytes={kilobytes:.3f}")
            pairs.append((ours, peer, number / sum(results["seconds_by_phase"].values())))
    own_runs, peers, rates = zip(*pairs, strict=True)
    seconds, peer_seconds = (statistics.median(one.seconds for one in runs) for runs in (own_runs, peers))
    return Measurement(
        number,
        supernodes,
        method,
        round(seconds, 1),
        round(peer_seconds, 1),
        round(seconds / peer_seconds, 2),
        round(statistics.median(rates), 1),
        round(kilobytes, 1),
        round(max(one.memory.peaks[SERVER] for one in own_runs)),
        round(max(one.memory.peaks[SERVER] for one in peers)),
        round(max(one.memory.peaks[WORKER] for one in own_runs)),
        max(len(one.memory.cpu_seconds[WORKER]) for one in own_runs),
        round(statistics.median(cpu_seconds(one) for one in own_runs), 1),
        round(statistics.median(cpu_seconds(one) for one in peers), 1),
        round(os.getloadavg()[0], 1),
    )


def first_clients(sizes: Path, number: int, folder: Path) -> Path:
    """Write a file of the same columns with the first clients and the line of the test split."""
    head, *lines = sizes.read_text().splitlines()
    test = [line for line in lines if line.startswith("test,")]
    made = folder / "client_sizes.csv"
    made.write_text("\n".join([head, *test, *[line for line in lines if line not in test][:number]]) + "\n")
    return made


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON for each number of SuperNodes."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=Path, required=True, help="CSV file: client,num_images")
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--supernodes", type=int, nargs="+", default=[2, 100])
    parser.add_argument("--method", default="fedncm,fedcof,fedroot")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", help="only the first ones of the file")
    parser.add_argument("--cache", type=Path, help="folder of features that stay; by default one that is deleted")
    parser.add_argument("--settings", default="", help="more run-config")
    printed(_measured(parser.parse_args(arguments)))


def _measured(options: argparse.Namespace) -> Iterator[Measurement]:
    """Yield a line for each number of clients and of SuperNodes."""
    with tempfile.TemporaryDirectory() as folder:
        for clients in options.clients or [0]:
            sizes = options.sizes.absolute()
            if clients:
                sizes = first_clients(sizes, clients, Path(folder))
            for supernodes in options.supernodes:
                yield measure(
                    sizes,
                    options.classes,
                    supernodes,
                    options.method,
                    options.repeats,
                    options.settings,
                    options.cache and options.cache.absolute(),
                )


if __name__ == "__main__":
    main()
