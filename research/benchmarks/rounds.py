"""Rounds of training a second through `flwr run`, beside those of an app that sends as many messages of the same sizes.

    python -m research.benchmarks.rounds --clients 10 100 --training fedmezo probe

A round's seconds are the median of those after the first few, in which workers start and nodes get the model. The same
run in one process (`fedstats run`) shows the time of the two forward passes and of our own code without Flower.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from research.benchmarks.flower_runs import finished, start_superlink
from research.benchmarks.lines import parser_of, printed
from research.benchmarks.scale import PEER
from tests.support.flower import REPOSITORY, simulation

# Not counted, at the beginning.
WARM_UP = 5
SUPERNODES = 2
SAID = "[do-nothing] seconds of a round: "


@dataclass(frozen=True)
class Measurement:
    """One training.

    Attributes
    ----------
    training : str
        ``fine-tune``: fedmezo, or probe, which is FedAvg of the head.
    clients : int
        All of them take part in every round.
    seconds, peer_seconds, in_process_seconds : float
        Of a round: through `flwr run`, of the other app, and of `fedstats run`.
    ratio : float
        Of the first two.
    bytes_up, bytes_down : int
        Of a client's reply and request.
    load : float
        Programs that wanted a core in the last minute.
    """

    training: str
    clients: int
    seconds: float
    peer_seconds: float
    in_process_seconds: float
    ratio: float
    bytes_up: int
    bytes_down: int
    load: float


def measure(training: str, clients: int, rounds: int) -> Measurement:
    """Run ours in one process, through Flower, and then the other app.

    Raises
    ------
    RuntimeError
        If one fails.
    """
    settings = (
        f"method='fedncm' fine-tune='{training}' start-head='fedncm' num-clients={clients} "
        f"num-server-rounds={rounds} fraction-tune=1.0 learning-rate=0.01 plots=false"
    )
    flwr_run = f'--stream --federation-config "num-supernodes={SUPERNODES}" --run-config'
    with tempfile.TemporaryDirectory() as folder, simulation(Path(folder)) as flower:
        flower.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        start_superlink(flower)
        alone = finished(flower, f'{sys.executable} -m fedstats_app.cli run "{settings}"')
        ours = finished(flower, f'flwr run {REPOSITORY} {flwr_run} "{settings}"')
        # Not of the last, which has asked clients for their losses too.
        second = json.loads((ours.folder / "rounds.jsonl").read_text().splitlines()[2])
        up, down = second["bytes_up"] // clients, second["bytes_down"] // clients
        same = (
            f"num-clients={clients} rounds={rounds} kilobytes={up / 1000} request-kilobytes={down / 1000} "
            f"arrays=1 clients-per-message={min(10, math.ceil(clients / SUPERNODES))}"
        )
        peer = finished(flower, f'flwr run {PEER} {flwr_run} "{same}"')
        seconds, in_process = of_a_round(ours.folder), of_a_round(alone.folder)
    line = next(line for line in peer.output.splitlines() if line.startswith(SAID))
    peer_seconds = statistics.median(json.loads(line.removeprefix(SAID))[WARM_UP:])
    return Measurement(
        training,
        clients,
        round(seconds, 4),
        round(peer_seconds, 4),
        round(in_process, 4),
        round(seconds / peer_seconds, 2),
        up,
        down,
        round(os.getloadavg()[0], 1),
    )


def of_a_round(folder: Path) -> float:
    """Return the median seconds of a run's rounds."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return float(statistics.median(entry["seconds"] for entry in rounds if entry["round"] > WARM_UP))


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON for each training and number of clients."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--training", nargs="+", default=["fedmezo", "probe"])
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args(arguments)
    if options.rounds <= WARM_UP:
        parser.error(f"--rounds must be more than {WARM_UP}, which are not counted, got {options.rounds}")
    pairs = itertools.product(options.training, options.clients)
    printed(measure(training, clients, options.rounds) for training, clients in pairs)


if __name__ == "__main__":
    main()
