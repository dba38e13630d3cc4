"""Cost of masks: one run of secure sums without messages, beside the same statistics in clear.

    python -m research.benchmarks.secure_sums --clients 100 --classes 100 --dim 1280

Every client has the statistics of the same random features, and keys and masks of its own. 30 % of the clients are lost
where it costs most: after all others masked with them, in the last and largest sum. Seconds are of the processor; one
client's are the mean over all, its statistics aside. The sum that the server unmasks is compared with that of the
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
from fedstats_app.secure.party import SEALED_BYTES, Party
from fedstats_app.secure.plan import IDENTITY_BYTES, Plan
from fedstats_app.secure.shamir import SHARE_BYTES
from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.exact import on_grid
from fedstats_app.statistics.secure_words import Known, SecureLayout, Words
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


def measure(clients: int, classes: int, dim: int, *, lost: float = 0.3, gram: str = "triangle") -> dict[str, float]:
    """Return seconds of the processor and bytes of a run in which some clients are lost.

    Raises
    ------
    AssertionError
        If a sum is another one than that of the survivors' numbers.
    """
    of_client, of_server, nonce = Clock(), Clock(), bytes(KEY_BYTES)
    layout, words = numbers_of(clients, classes, dim, gram)
    rounds = len(layout.kinds) + SPARE_ROUNDS
    parties = [of_client(Party.new, nonce, rounds, party.to_bytes(IDENTITY_BYTES)) for party in range(clients)]
    plan = Plan(nonce, rounds, tuple(of_client(lambda party=party: party.public) for party in parties))
    sealed = [of_client(party.sealed_shares, plan) for party in parties]
    sent = len(plan.parties[0].to_bytes()) + sum(map(len, sealed[0]))
    everybody, gone = range(clients), min(int(lost * clients), most_lost(clients))
    for turn, own in enumerate(words):
        left = range(gone, clients) if turn == len(words) - 1 else everybody
        total = MaskedSum([(len(array), array.dtype) for array in own], query="")
        for party in left:
            masked = [array.copy() for array in own]
            of_client(parties[party].mask, plan, turn, everybody, masked, "")
            of_server(total.add, party, masked)
        answers = {}
        for party in left:
            others = plan.neighbours(party)
            places = [SEALED_BYTES * plan.neighbours(other).index(party) for other in others]
            parts = [sealed[other][turn][at : at + SEALED_BYTES] for other, at in zip(others, places, strict=True)]
            mine = dict(zip(others, parts, strict=True))
            answers[party] = of_client(parties[party].answer, plan, turn, everybody, left, mine)
        found = of_server(total.unmask, plan, turn, everybody, answers)
        for array, summed in zip(own, found, strict=True):
            assert np.array_equal(summed, array * array.dtype.type(len(left))), f"sum {turn} differs"
        sent += sum(array.nbytes for array in own) + SHARE_BYTES * len(plan.neighbours(0))
    degree, threshold = degree_and_threshold(clients)
    spec = StatisticsSpec(gram=gram != "none")
    return {
        "clients": clients,
        "lost": gone,
        "degree": degree,
        "threshold": threshold,
        "client_seconds": of_client.seconds / clients,
        "server_seconds": of_server.seconds,
        "megabytes_up": sent / 1e6,
        "megabytes_up_in_clear": spec.num_bytes(SAMPLES, min(classes, SAMPLES), dim, 4) / 1e6,
    }


def numbers_of(clients: int, classes: int, dim: int, gram: str) -> tuple[SecureLayout, list[Words]]:
    """Make the words that a client sends in each sum."""
    features = torch.rand(SAMPLES, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = float(torch.linalg.vector_norm(features, dim=1).max()) + 1.0
    layout = SecureLayout.of(classes, dim, gram, clients, clients * SAMPLES, norm)  # type: ignore[arg-type]  # a choice
    labels, allowed = torch.arange(SAMPLES) % classes, torch.ones(classes, dtype=torch.bool)
    own = FeatureStatistics.from_features(on_grid(features, layout.bits), labels, classes, gram=gram != "none")
    words = [layout.presence(own.class_counts), layout.sums(own, allowed)]
    if gram == "triangle":
        parts: Words = [array * array.dtype.type(clients) for array in words[1]]
        words.append(layout.scatter(own, Known.of(layout.read_sums(parts, allowed))))
    return layout, words


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--lost", type=float, default=0.3, help="share of the clients, at most 0.3")
    parser.add_argument("--gram", choices=["none", "triangle", "exact"], default="triangle")
    options: argparse.Namespace = parser.parse_args(arguments)
    print(json.dumps(measure(options.clients, options.classes, options.dim, lost=options.lost, gram=options.gram)))


if __name__ == "__main__":
    main()
