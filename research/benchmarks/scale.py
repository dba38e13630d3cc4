"""Many small clients through `flwr run`: its time beside that of an app that does nothing, and its processes' memory.

    python -m research.benchmarks.scale --sizes /data/client_sizes.csv --supernodes 2 100 --method fedncm,fedcof,fedroot

Sizes are those of the clients, a line for each (research/performance.md); features are made up, d = 1280. The first run
takes place in one process (`fedstats run`), fills the feature cache and is not counted; the heads of all others must be
the same to the byte. Then both apps run in turn; the other one gets as many messages, of the mean size that the first
one's replies had. Processor time hardly depends on what else the machine does, unlike seconds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from research.benchmarks.flower_runs import finished, start_superlink
from research.benchmarks.lines import parser_of, printed
from research.benchmarks.made_up import TEST, read_sizes, write_federation
from tests.support.flower import REPOSITORY, Finished, Simulation, simulation

PEER = REPOSITORY / "research" / "benchmarks" / "do_nothing"
# Parts of the command lines of the two kinds of processes: the ServerApp and Ray's driver, and a client's worker.
SERVER, WORKER = "flwr-simulation", "ray::ClientAppActor"


@dataclass(frozen=True)
class Measurement:
    """One number of SuperNodes.

    Attributes
    ----------
    clients, supernodes : int
        Their numbers.
    method : str
        Method of the run.
    seconds, peer_seconds : float
        Medians of whole `flwr run`s.
    ratio : float
        Of these.
    processor_seconds, peer_processor_seconds : float
        Medians of the processor time of all processes that took part, Flower's own among them.
    processor_ratio : float
        Of these.
    clients_per_second : float
        By the seconds in which clients were asked, the heads solved, and everything evaluated and written.
    kilobytes : float
        Mean of a client's reply.
    server_megabytes, peer_server_megabytes, worker_megabytes : float
        Largest resident memory of a process, libraries included.
    workers : int
        Processes that Flower started for clients.
    load : float
        Programs that wanted a core, on average over the last minute of the last run.
    """

    clients: int
    supernodes: int
    method: str
    seconds: float
    peer_seconds: float
    ratio: float
    processor_seconds: float
    peer_processor_seconds: float
    processor_ratio: float
    clients_per_second: float
    kilobytes: float
    server_megabytes: float
    peer_server_megabytes: float
    worker_megabytes: float
    workers: int
    load: float


class Processes:
    """Watches the processes of one Flower home: processor time, and largest resident memory, libraries included.

    Memory, in MB, is of processes that do not exist before: others belong to an earlier run.

    Attributes
    ----------
    peaks : dict
        From a text in command lines, and the id of each process that has it there, to its largest memory.
    ticks : dict
        From the id of a process to its processor time since the start, in ticks of the system's clock.
    """

    def __init__(self, home: Path) -> None:
        self._home, self._over = f"FLWR_HOME={home}\0".encode(), threading.Event()
        self._earlier = {*Path("/proc").glob("[0-9]*")}
        self.peaks: dict[str, dict[str, float]] = {SERVER: {}, WORKER: {}}
        self.ticks: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._look()
        self._before, self.ticks = self.ticks, {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Processes:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def processor_seconds(self) -> float:
        """Processor time of all processes together, to half a second for each that has ended."""
        return sum(self.ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self._look()

    def _look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, StopIteration):  # it may end any moment
                if self._home not in (process / "environ").read_bytes():
                    continue
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                self.ticks[process.name] = int(fields[11]) + int(fields[12]) - self._before.get(process.name, 0)
                if process not in self._earlier:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    kind = next(kind for kind in self.peaks if kind in command)
                    status = (process / "status").read_text()
                    peak = float(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
                    self.peaks[kind][process.name] = max(self.peaks[kind].get(process.name, 0.0), peak)


@dataclass(frozen=True)
class _Run:
    """One run: its seconds, what it printed, and its processes."""

    seconds: float
    finished: Finished
    processes: Processes


def _run(flower: Simulation, command: str) -> _Run:
    with Processes(Path(flower.environment["FLWR_HOME"])) as processes:
        started = time.perf_counter()
        done = finished(flower, command)
        seconds = time.perf_counter() - started
    return _Run(seconds, done, processes)


def _flwr_run(flower: Simulation, app: Path, supernodes: int, cores: int, settings: str) -> _Run:
    federation = f"num-supernodes={supernodes} client-resources-num-cpus={cores}"
    return _run(flower, f'flwr run {app} --stream --federation-config "{federation}" --run-config "{settings}"')


def heads_of(folder: Path) -> dict[str, bytes]:
    """Return the files of the heads in a run folder."""
    return {file.name: file.read_bytes() for file in folder.glob("heads/*.safetensors")}


def measure(sizes: Path, num_classes: int, supernodes: int, method: str, repeats: int, cores: int = 2) -> Measurement:
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
            f"partition-column='client' num-clients=0 backbone='random:wide' plots=false"
        )
        flower.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        flower.environment["FEDSTATS_CACHE"] = str(Path(folder) / "cache")
        start_superlink(flower)
        command = f'{sys.executable} -m fedstats_app.cli run --supernodes {supernodes} "{own}"'
        expected = heads_of(_run(flower, command).finished.folder)
        pairs = []
        for _ in range(repeats):
            ours = _flwr_run(flower, REPOSITORY, supernodes, cores, own)
            results = ours.finished.json("results.json")
            if results["num_clients_merged"] != number:
                raise RuntimeError(f"all {number} clients must be in the heads, got {results['num_clients_merged']}")
            if heads_of(ours.finished.folder) != expected or not expected:
                raise RuntimeError("the heads must be those of the run in one process, to the byte")
            kilobytes = results["wire_bytes_received"] / number / 1000
            peer = _flwr_run(flower, PEER, supernodes, cores, f"num-clients={number} kilobytes={kilobytes:.3f}")
            pairs.append((ours, peer, number / sum(results["seconds_by_phase"].values())))
    own_runs, peers, rates = zip(*pairs, strict=True)
    seconds, peer_seconds = (statistics.median(measured.seconds for measured in runs) for runs in (own_runs, peers))
    processor, peer_processor = (
        statistics.median(measured.processes.processor_seconds for measured in runs) for runs in (own_runs, peers)
    )
    return Measurement(
        number,
        supernodes,
        method,
        round(seconds, 1),
        round(peer_seconds, 1),
        round(seconds / peer_seconds, 2),
        round(processor, 1),
        round(peer_processor, 1),
        round(processor / peer_processor, 2),
        round(statistics.median(rates), 1),
        round(kilobytes, 1),
        round(max(max(measured.processes.peaks[SERVER].values()) for measured in own_runs)),
        round(max(max(measured.processes.peaks[SERVER].values()) for measured in peers)),
        round(max(max(measured.processes.peaks[WORKER].values()) for measured in own_runs)),
        max(len(measured.processes.peaks[WORKER]) for measured in own_runs),
        round(os.getloadavg()[0], 1),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON for each number of SuperNodes."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=Path, required=True, help="CSV file: client,num_images")
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--supernodes", type=int, nargs="+", default=[2, 100])
    parser.add_argument("--method", default="fedncm,fedcof,fedroot")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="of a worker; 1: a worker for each core")
    given = parser.parse_args(arguments)
    sizes = given.sizes.absolute()
    printed(
        measure(sizes, given.classes, number, given.method, given.repeats, given.cores) for number in given.supernodes
    )


if __name__ == "__main__":
    main()
