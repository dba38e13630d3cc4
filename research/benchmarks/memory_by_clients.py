"""Memory of the server after more and more clients of a real federation's sizes, and after solving.

    python -m research.benchmarks.memory_by_clients --sizes /data/client_sizes.csv --method fed3r fedcof fedroot
    python -m research.benchmarks.memory_by_clients --sizes /data/client_sizes.csv --clients 50000 --features 256

With ``--clients`` the sizes come again and again, each time with labels of their own. The processor time is that of
clients and server together, on one thread.

Features are drawn, labels are those of the made-up data set of these sizes (research/performance.md); replies are made
when they are pulled. Everything else is the real thing: ClientGrid, wire checks, sums, rows, solve. Each method has a
process of its own, whose largest resident memory above its start is read after each of these numbers of clients.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.methods import METHODS
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics, read_statistics_request, statistics_reply
from research.benchmarks.answers import ask
from research.benchmarks.lines import parser_of, printed
from research.benchmarks.made_up import labels_of
from research.benchmarks.memory import Rise

MARKS = (500, 1000, 2000, 4000, 12_500, 25_000, 50_000)
HOSTS = 2


@dataclass(frozen=True)
class Measurement:
    """The server after some clients.

    Attributes
    ----------
    method : str
        Method of the run.
    clients : int
        Merged so far.
    solved : bool
        True if the head was solved too.
    megabytes : float
        Largest resident memory so far above that of the start.
    seconds : float
        Processor time so far.
    """

    method: str
    clients: int
    solved: bool
    megabytes: float
    seconds: float


def measure(method: str, labels: list[NDArray[np.int64]], num_classes: int, feature_dim: int) -> list[Measurement]:
    """Ask all clients and solve; return a line for every mark that is passed."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    found: list[Measurement] = []

    def answer(msg: Message, client: int) -> Message:
        own, draw = torch.from_numpy(labels[client]), torch.Generator().manual_seed(client)
        features = torch.rand(len(own), feature_dim, generator=draw)
        return statistics_reply(msg, read_statistics_request(msg).statistics(features, own))

    strategy = StatisticsStrategy(num_classes, [METHODS[method].default()], feature_dim=feature_dim)
    rise = Rise()
    started = time.process_time()

    def note(merged: int, *, solved: bool) -> None:
        taken = time.process_time() - started
        found.append(Measurement(method, merged, solved, round(rise.megabytes()), round(taken, 2)))

    def on_reply(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        merged = strategy.collection.num_merged
        if merged in MARKS or merged == len(labels):
            note(merged, solved=False)

    strategy.on_reply = on_reply
    ask(strategy, answer, len(labels), hosts=HOSTS)
    note(len(labels), solved=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: lines of JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=Path, required=True, help="CSV file: client,num_images")
    parser.add_argument("--method", nargs="+", choices=[*METHODS], default=["fed3r", "fedcof", "fedroot"])
    parser.add_argument("--clients", type=int, help="by default as many as there are sizes")
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--features", type=int, default=1280)
    options = parser.parse_args(arguments)
    labels = labels_of(options.sizes, options.classes, options.clients)
    for method in options.method:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            printed(process.apply(measure, (method, labels, options.classes, options.features)))


if __name__ == "__main__":
    main()
