"""Cost of masks: one run of secure sums without messages, beside the same statistics in clear.

    python -m research.benchmarks.secure_sums --clients 100 --classes 100 --dim 1280

Every client has the statistics of the same random features, and keys and masks of its own. 30 % of the clients are lost
where it costs most: after all others masked with them. Seconds are of the processor; one client's are the mean over
all, its statistics aside. The sum that the server unmasks is compared with that of the
numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from fedstats_app.secure.graph import degree_and_threshold, most_lost
from fedstats_app.secure.masks import KEY_BYTES
from fedstats_app.secure.party import SEALED_BYTES, Party, query_of
from fedstats_app.secure.plan import IDENTITY_BYTES, Entry, Plan
from fedstats_app.secure.shamir import SHARE_BYTES
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.exact import on_grid
from fedstats_app.statistics.secure_words import SecureLayout, Words
from fedstats_app.strategies.secure_sums import SPARE_ROUNDS
from research.benchmarks.lines import parser_of

SAMPLES = 200
Found = TypeVar("Found")


class Clock:
    """Seconds of the processor that some calls took together."""

    seconds = 0.0

    def __call__(self, function: Callable[..., Found], *arguments: object) -> Found:
        """Call a function."""
        started = time.process_time()
        found = function(*arguments)
        self.seconds += time.process_time() - started
        return found


def measure(clients: int, classes: int, dim: int, *, lost: float = 0.3, gram: bool = True) -> dict[str, float]:
    """Return seconds of the processor and bytes of a run in which some clients are lost.

    Raises
    ------
    AssertionError
        If the sum is another one than that of the survivors' numbers.
    """
    of_client, of_server, nonce, rounds = Clock(), Clock(), bytes(KEY_BYTES), 1 + SPARE_ROUNDS
    layout, words = numbers_of(clients, classes, dim, gram=gram)
    lists = np.packbits(np.ones(classes, bool)).tobytes()

    def entry(number: int) -> Callable[[bytes, tuple[bytes, ...]], Entry]:
        return lambda channel, masks: Entry(number.to_bytes(IDENTITY_BYTES), channel, masks, lists)

    parties = [of_client(Party.new, nonce, rounds, "", entry(number)) for number in range(clients)]
    plan = Plan(nonce, rounds, classes, tuple(party.own for party in parties))
    parties, sealed = map(list, zip(*(of_client(party.sealed_shares, plan) for party in parties), strict=True))
    everybody, gone = range(clients), min(int(lost * clients), most_lost(clients))
    left = range(gone, clients)
    total = MaskedSum([len(array) for array in words], query_of("", "sums", everybody))
    for party in left:
        masked = [array.copy() for array in words]
        parties[party] = of_client(parties[party].mask, plan, 0, everybody, masked, "sums")
        of_server(total.add, party, masked)
    answers = {}
    for party in left:
        others = plan.neighbours(party)
        places = [SEALED_BYTES * plan.neighbours(other).index(party) for other in others]
        parts = [sealed[other][0][at : at + SEALED_BYTES] for other, at in zip(others, places, strict=True)]
        _, answers[party] = of_client(parties[party].answer, plan, 0, everybody, left, parts)
    found = of_server(total.unmask, plan, 0, everybody, answers)
    assert all(np.array_equal(own * np.uint64(len(left)), summed) for own, summed in zip(words, found, strict=True))
    keys = len(plan.table[0]) + sum(map(len, sealed[0])) + SHARE_BYTES * len(plan.neighbours(0))
    degree, threshold = degree_and_threshold(clients)
    spec = StatisticsSpec(gram=gram)
    return {
        "clients": clients,
        "lost": gone,
        "degree": degree,
        "threshold": threshold,
        "client_seconds": of_client.seconds / clients,
        "server_seconds": of_server.seconds,
        "megabytes_up": (keys + sum(number * size for number, size in layout.shapes(classes))) / 1e6,
        "megabytes_up_in_clear": spec.num_bytes(SAMPLES, min(classes, SAMPLES), dim, 4) / 1e6,
    }


def numbers_of(clients: int, classes: int, dim: int, *, gram: bool) -> tuple[SecureLayout, Words]:
    """Make the words that a client sends."""
    features = torch.rand(SAMPLES, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = float(torch.linalg.vector_norm(features, dim=1).max()) + 1.0
    layout = SecureLayout(dim, clients * SAMPLES, norm, gram=gram)
    labels, every = torch.arange(SAMPLES) % classes, torch.ones(classes, dtype=torch.bool)
    own = FeatureStatistics.from_features(on_grid(features, layout.bits), labels, classes, gram=gram)
    return layout, layout.words(own, every, torch.zeros(classes))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--lost", type=float, default=0.3, help="share of the clients, at most 0.3")
    parser.add_argument("--no-gram", action="store_true", help="class sums alone")
    options: argparse.Namespace = parser.parse_args(arguments)
    print(
        json.dumps(measure(options.clients, options.classes, options.dim, lost=options.lost, gram=not options.no_gram))
    )


if __name__ == "__main__":
    main()
