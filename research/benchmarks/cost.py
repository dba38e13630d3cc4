"""Growth of cost with clients K, classes C, features d and samples N: fitted exponents beside the formulas'.

    python -m research.benchmarks.cost

In this process, on one thread, in processor time. Clients form their statistics of random features, and the server
reads, checks, adds and solves. An exponent above its formula's by more than ``TOLERANCE`` is an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message

from fedstats_app.methods import METHODS
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.testing import instruction
from fedstats_app.wire import read_statistics_request, statistics_reply
from research.benchmarks.lines import parser_of

TOLERANCE = 0.15
REPEATS = 2


@dataclass(frozen=True)
class Size:
    """Of a federation.

    Attributes
    ----------
    clients, classes, features, samples : int
        K, C, d, and N of one client.
    """

    clients: int = 100
    classes: int = 100
    features: int = 128
    samples: int = 8

    def messages(self, method: str) -> tuple[StatisticsStrategy, list[Message], float]:
        """Return a strategy, a reply of every client, and the seconds that making them took."""
        strategy = StatisticsStrategy(self.classes, [METHODS[method].default()], feature_dim=self.features)
        content = strategy.request.to_content()
        draw = torch.Generator().manual_seed(0)
        replies, seconds = [], 0.0
        for client in range(self.clients):
            features = torch.rand(self.samples, self.features, generator=draw)
            labels = torch.randint(self.classes, (self.samples,), generator=draw)
            msg = instruction(content, node=client)
            started = time.process_time()
            statistics = read_statistics_request(msg).statistics(features, labels)
            replies.append(statistics_reply(msg, statistics))
            seconds += time.process_time() - started
        return strategy, replies, seconds


def client_seconds(size: Size, method: str) -> float:
    """Return the seconds of all clients."""
    return min(size.messages(method)[2] for _ in range(REPEATS))


def sum_seconds(size: Size, method: str) -> float:
    """Return the seconds in which the server reads, checks and adds all replies."""
    return min(_server_seconds(size, method)[0] for _ in range(REPEATS))


def solve_seconds(size: Size, method: str) -> float:
    """Return the seconds in which the server solves."""
    return min(_server_seconds(size, method)[1] for _ in range(REPEATS))


def _server_seconds(size: Size, method: str) -> tuple[float, float]:
    strategy, replies, _ = size.messages(method)
    started = time.process_time()
    for reply in replies:
        outcome, _ = strategy.collection.fold(reply)
        if outcome.outcome != "merged":
            raise RuntimeError(outcome.reason)
    summed = time.process_time()
    strategy.solve()
    return summed - started, time.process_time() - summed


@dataclass(frozen=True)
class Question:
    """Growth of one part of the work with one size.

    Attributes
    ----------
    part, symbol : str
        In words.
    seconds : callable
        Returns the seconds for a size and a method.
    method : str
        Of which.
    varied : str
        Attribute of :class:`Size`.
    values : sequence of int
        It has.
    formula : int
        The exponent that no cost may be above.
    base : Size
        The other sizes.
    """

    part: str
    symbol: str
    seconds: Callable[[Size, str], float]
    method: str
    varied: str
    values: Sequence[int]
    formula: int
    base: Size = Size()

    def exponent(self) -> float:
        """Return the slope of the logarithms, by least squares."""
        points = [
            (math.log(value), math.log(self.seconds(replace(self.base, **{self.varied: value}), self.method)))
            for value in self.values
        ]
        mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
        covariance: float = sum((x - mean_x) * (y - mean_y) for x, y in points)
        variance: float = sum((x - mean_x) ** 2 for x, _ in points)
        return covariance / variance


def questions(scale: int) -> Iterator[Question]:
    """Yield what is measured; ``scale`` divides the sizes."""
    few = Size(clients=max(20 // scale, 1), samples=1000)
    for method in ("fedncm", "fed3r", "fedcof", "fedroot", "fedcgs"):
        square = method != "fedncm"
        clients, many = tuple(value // scale for value in (100, 200, 400, 800)), Size(samples=8)
        yield Question("clients' statistics", "N", client_seconds, method, "samples", (1000, 2000, 4000), 1, few)
        yield Question("clients' statistics", "d", client_seconds, method, "features", (128, 256, 512), 3, few)
        yield Question("server's sums", "K", sum_seconds, method, "clients", clients, 1, many)
        yield Question("server's sums", "C", sum_seconds, method, "classes", (100, 400, 1600), 1, many)
        yield Question("server's sums", "d", sum_seconds, method, "features", (128, 256, 512), 2 if square else 1, many)
        yield Question("solving", "K", solve_seconds, method, "clients", clients, 1, many)
        yield Question("solving", "C", solve_seconds, method, "classes", (100, 400, 1600), 1, many)
        yield Question("solving", "d", solve_seconds, method, "features", (128, 256, 512), 3 if square else 1, many)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; the exit code is 1 where a cost grows faster than its formula."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", default="", help="only questions whose method, part or symbol is this")
    parser.add_argument("--scale", type=int, default=1, help="divide the numbers of clients by this")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| part | method | grows with | exponent | formula |\n|---|---|---|---|---|")
    worse = False
    for question in questions(options.scale):
        if options.part not in ("", question.method, question.part, question.symbol):
            continue
        found = question.exponent()
        worse |= found > question.formula + TOLERANCE
        row = (question.part, question.method, question.symbol, f"{found:.2f}", str(question.formula))
        print(f"| {' | '.join(row)} |", flush=True)
    return int(worse)


if __name__ == "__main__":
    raise SystemExit(main())
