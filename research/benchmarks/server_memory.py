"""Memory of the server while a thousand clients answer FedCGS: it must not grow with their number.

    python -m research.benchmarks.server_memory --replies 1000 --megabytes 1

Replies are made when they are pulled, as large as asked for, and come in a random order within the window. Everything
else is the real thing: ClientGrid, wire checks, sums, solve.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

import torch
from flwr.app import Message

from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.strategies import FedCGS
from fedstats_app.wire import statistics_reply
from research.benchmarks.answers import ask
from research.benchmarks.lines import parser_of, printed
from research.benchmarks.memory import with_peak_memory

NUM_CLASSES, SAMPLES_PER_CLIENT, NUM_HOSTS = 10, 20, 4
LIMIT_MEGABYTES = 250.0


@dataclass(frozen=True)
class Measurement:
    """What one run took.

    Attributes
    ----------
    replies, merged : int
        Clients asked, and those in the sum.
    feature_dim : int
        d, which makes a reply as large as asked for.
    reply_megabytes : float
        Mean size of a reply.
    increase_megabytes, limit : float
        Peak resident memory above the start, and what it may be.
    seconds : float
        For all, making the replies included.
    """

    replies: int
    merged: int
    feature_dim: int
    reply_megabytes: float
    increase_megabytes: float
    limit: float
    seconds: float


def feature_dim_for(megabytes: float) -> int:
    """Return d for which the triangle of a float32 Gram matrix has this size."""
    return max(1, round(math.sqrt(2 * megabytes * 1e6 / 4)))


def measure(replies: int, megabytes: float) -> Measurement:
    """Run FedCGS over ``replies`` clients of about ``megabytes`` each."""
    dim = feature_dim_for(megabytes)

    def answer(msg: Message, client: int) -> Message:
        random = torch.Generator().manual_seed(client)
        features = torch.rand(SAMPLES_PER_CLIENT, dim, generator=random)
        labels = torch.randint(NUM_CLASSES, (SAMPLES_PER_CLIENT,), generator=random)
        # As the matrix itself, whose factor would be far smaller for so few samples.
        return statistics_reply(msg, FeatureStatistics.from_features(features, labels, NUM_CLASSES))

    strategy = FedCGS(NUM_CLASSES, feature_dim=dim, min_clients=replies, shrinkage=0.1)
    _warm_up(dim)
    started = time.perf_counter()
    # Four replies are ready at a time, so that the buffer for those that come too early is in use.
    how = {"hosts": NUM_HOSTS, "shuffle_seed": 0, "per_pull": 4}
    _, increase = with_peak_memory(lambda: ask(strategy, answer, replies, **how))
    seconds = time.perf_counter() - started
    merged = strategy.collection.num_merged
    mean_size = strategy.collection.total_wire_bytes / max(merged, 1) / 1e6
    return Measurement(replies, merged, dim, mean_size, increase, LIMIT_MEGABYTES, seconds)


def _warm_up(dim: int) -> None:
    """Let the linear algebra library allocate its own buffers before memory is measured."""
    square = StatisticsSpec(gram=True).from_features(torch.eye(dim), torch.zeros(dim, dtype=torch.int64), 1).gram
    if square is not None:
        torch.linalg.cholesky_ex(square)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--replies", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=1.0, help="size of one reply")
    options = parser.parse_args(arguments)
    if options.replies < 1 or not 0 < options.megabytes <= 100:
        parser.error("--replies must be at least 1 and --megabytes lie in (0, 100]")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    # Matrices are small here: on a busy machine threads that wait for each other take most of the time.
    torch.set_num_threads(1)
    printed([measure(options.replies, options.megabytes)])


if __name__ == "__main__":
    main()
