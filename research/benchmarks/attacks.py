"""What one hostile client among many does to every method, whether it is refused or named, and what protects.

    python -m research.benchmarks.attacks --clients 100 --seeds 1

The first client is hostile, on the default run's data. Clients answer in this process, by the app's own requests and
replies. An attack is a function of ATTACKS; a training's attacks can be added to it from their own module.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.grid.kept_statistics import KeptStatistics, LargestStatistics
from fedstats_app.heads.influence import energy, evenly_spaced
from fedstats_app.server.asking import MAX_GRAMS
from fedstats_app.server.influence import measure
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, ScatterFactor
from fedstats_app.statistics.share_caps import ShareCaps
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import (
    Limits,
    ReceivedStatistics,
    StatisticsRequest,
    read_statistics_request,
    statistics_reply,
)
from research.benchmarks.answers import ask
from research.benchmarks.features import Features, features_of, settings_of
from research.benchmarks.lines import parser_of, printed

# 6 sqrt(d), of EfficientNet-Lite0.
FEATURE_NORM = 6.0 * 1280**0.5
HOSTILE = 0


@dataclass(frozen=True, eq=False)
class Victim:
    """What a hostile client knows: its own samples, all others', what it is asked for, and what is refused."""

    features: Tensor
    labels: Tensor
    data: Features
    request: StatisticsRequest
    limits: Limits

    def honest(self) -> ClientStatistics:
        """Return the statistics of its own samples."""
        return self.request.statistics(self.features, self.labels)[0]


Attack = Callable[[Victim], ClientStatistics]


def scaled_means(factor: float) -> Attack:
    """Return its own statistics with all features times a factor."""

    def attack(victim: Victim) -> ClientStatistics:
        return victim.request.statistics(factor * victim.features, victim.labels)[0]

    return attack


def claimed(number: int, *, factor: float = 1.0, next_class: bool = False) -> Attack:
    """Claim this many samples of every class, whose mean is the true one times a factor, or the next class's."""

    def attack(victim: Victim) -> ClientStatistics:
        labels = (victim.data.train_labels - int(next_class)) % victim.data.num_classes
        (true,) = victim.request.statistics(factor * victim.data.train, labels)
        return _times(true, number / int(true.rows.counts.min()))

    return attack


def poisoned_gram(amount: float) -> Attack:
    """Add a multiple of the identity to its own Gram matrix."""

    def attack(victim: Victim) -> ClientStatistics:
        honest = victim.honest()
        gram = honest.gram
        if gram is None:
            raise ValueError("the attack needs statistics with a Gram matrix")
        return ClientStatistics(honest.rows, gram + amount * torch.eye(len(gram), dtype=torch.float64))

    return attack


def hidden_classes(victim: Victim) -> ClientStatistics:
    """Claim all the energy that its bound admits, along what tells classes apart but for the least telling direction.

    Along that alone the classes lie in a row.
    """
    honest = victim.honest()
    (true,) = victim.request.statistics(victim.data.train, victim.data.train_labels)
    means = (true.rows.means - true.rows.means.mean(dim=0)).to(torch.float64)
    directions = torch.linalg.svd(means, full_matrices=False).Vh[:-2]
    room = 0.999 * victim.limits.feature_norm**2 * int(honest.rows.num_examples) - energy(honest)
    each = room / len(directions)
    if honest.gram is not None:
        return ClientStatistics(honest.rows, honest.gram + each * directions.T @ directions)
    if honest.scatter is None:
        return honest
    values = torch.full((len(directions),), each**0.5)[: len(honest.scatter)]
    return ClientStatistics(honest.rows, None, ScatterFactor(values, directions[: len(values)]))


def large_and_honest(victim: Victim) -> ClientStatistics:
    """No attack: as many samples of its own kind as all others together."""
    return victim.request.statistics(victim.data.train, victim.data.train_labels)[0]


def _times(client: ClientStatistics, factor: float) -> ClientStatistics:
    """Return the statistics of ``factor`` times as many samples of the same kind."""
    rows = client.rows
    counts = (rows.counts * factor).round().to(torch.int64).clamp(min=1)
    sums = rows.means * counts.unsqueeze(1)
    gram = None if client.gram is None else client.gram * float((counts / rows.counts).max())
    return ClientStatistics(ClassMeanRows(rows.class_ids, counts, num_classes=rows.num_classes, class_sums=sums), gram)


ATTACKS: dict[str, Attack] = {
    "none": Victim.honest,
    "none, one client with half of all": large_and_honest,
    "class means times 1e3": scaled_means(1e3),
    "class means times 1e6": scaled_means(1e6),
    "class means times 3": scaled_means(3.0),
    "1,000 a class, swapped": claimed(1000, next_class=True),
    "10,000 a class, swapped": claimed(10_000, next_class=True),
    "1e7 a class, swapped": claimed(10_000_000, next_class=True),
    "10 a class, means times -1e4": claimed(10, factor=-1e4),
    "10 a class, means times -3": claimed(10, factor=-3.0),
    "Gram plus 1e6 I": poisoned_gram(1e6),
    "Gram plus 1e3 I": poisoned_gram(1e3),
    "energy hides the classes": hidden_classes,
}
MEDIANS: dict[str, object] = {"fedncm-center": "median", "fedcof-center": "median"}
# What a user may switch on, as run-config.
PROTECTIONS: dict[str, dict[str, object]] = {
    "none": {},
    "max-class-share = 0.2": {"max-class-share": 0.2},
    "max-client-share = 0.05": {"max-client-share": 0.05},
    "center = median": MEDIANS,
    "max-client-share = 0.05, center = median": {"max-client-share": 0.05, **MEDIANS},
}


@dataclass(frozen=True)
class Measurement:
    """What became of one run.

    Attributes
    ----------
    attack, protection : str
        Names.
    partitioner : str
        How samples are split.
    num_clients, seed : int
        Of the run.
    accuracy : mapping
        By method.
    outcome : str
        "refused" or "merged".
    reason : str
        Why it was refused.
    named, named_by_test : tuple of int
        Clients said to harm: where the clients' class means judge, and where the server's test samples do.
    """

    attack: str
    protection: str
    partitioner: str
    num_clients: int
    seed: int
    accuracy: Mapping[str, float]
    outcome: str
    reason: str
    named: tuple[int, ...]
    named_by_test: tuple[int, ...]


def run(
    data: Features, parts: Sequence[np.ndarray], config: AppConfig, attack: Attack, limits: Limits
) -> tuple[dict[str, float], ClientOutcome, tuple[int, ...], tuple[int, ...]]:
    """Return every method's accuracy, what became of the hostile client, and whom clients and test samples name."""

    def answer(msg: Message, client: int) -> Message:
        request, index = read_statistics_request(msg), torch.from_numpy(parts[client])
        victim = Victim(data.train[index], data.train_labels[index], data, request, limits)
        return statistics_reply(msg, [attack(victim) if client == HOSTILE else victim.honest()])

    strategy = StatisticsStrategy(
        data.num_classes,
        tuple(config.configured_methods.values()),
        feature_dim=data.train.shape[1],
        seed=config.run.seed,
        limits=limits,
        caps=ShareCaps(config.federation.max_class_share, config.federation.max_client_share),
    )
    kept, largest = KeptStatistics(data.num_classes, rows_only=True), LargestStatistics(data.num_classes, MAX_GRAMS)

    def keep(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        if received is not None:
            kept.add(outcome.client, received.statistics)
            largest.add(outcome.client, received.statistics[0])

    strategy.on_reply = keep
    ask(strategy, answer, len(parts))
    by_clients, by_test = (
        tuple(sorted({client for one in measure(strategy, kept, largest, test) for client in one.named}))
        for test in (None, functools.partial(_some_test_samples, data))
    )
    accuracy = {name: data.accuracy(head, feature_map) for name, (feature_map, head) in strategy.mapped_heads.items()}
    (outcome,) = (one for one in strategy.outcomes if one.client == HOSTILE)
    return accuracy, outcome, by_clients, by_test


def _some_test_samples(data: Features, number: int) -> tuple[Tensor, Tensor]:
    chosen = evenly_spaced(len(data.test), number)
    return data.test[chosen], data.test_labels[chosen]


def measurements(
    settings: Mapping[str, object],
    partitioners: Sequence[str],
    attacks: Sequence[str],
    protections: Sequence[str],
    seeds: int,
) -> Iterator[Measurement]:
    """Yield every attack, under every protection, on every kind of split."""
    data = features_of(AppConfig.from_run_config(settings))
    for partitioner in partitioners:
        for seed in range(seeds):
            for protection in protections:
                own = {**settings, **PROTECTIONS[protection], "partitioner": partitioner, "seed": seed}
                config = AppConfig.from_run_config(own)
                parts = partitions(config.data, config.partition, seed)
                limits = Limits(FEATURE_NORM, config.federation.max_client_samples)
                for attack in attacks:
                    accuracy, outcome, named, named_by_test = run(data, parts, config, ATTACKS[attack], limits)
                    yield Measurement(
                        attack,
                        protection,
                        partitioner,
                        len(parts),
                        seed,
                        accuracy,
                        "merged" if outcome.outcome == "merged" else "refused",
                        outcome.reason,
                        named,
                        named_by_test,
                    )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("settings", nargs="?", default="", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--partitioners", nargs="+", default=["dirichlet", "iid"])
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--protections", nargs="+", default=list(PROTECTIONS), choices=list(PROTECTIONS))
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("fedstats_app").setLevel(logging.ERROR)
    settings = {**settings_of(given.settings), "num-clients": given.clients}
    printed(measurements(settings, given.partitioners, given.attacks, given.protections, given.seeds))


if __name__ == "__main__":
    main()
