"""Effect of hostile clients among many on every method, and whether they are refused or named.

    python -m research.benchmarks.attacks --clients 100 --hostile 1 5 --seeds 1

The first clients are hostile, on the default run's data. Clients answer in this process, by the app's own requests and
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
from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.heads import LinearHead
from fedstats_app.heads.influence import evenly_spaced
from fedstats_app.server.client_notes import KeptStatistics
from fedstats_app.server.influence import SUSPICIOUS, find_harm
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, ScatterFactor
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import Limits, ReceivedStatistics, StatisticsRequest, read_statistics_request, statistics_reply
from research.benchmarks.answers import ask
from research.benchmarks.features import Features, features_of, settings_of
from research.benchmarks.lines import parser_of, printed

# 6 sqrt(d), of EfficientNet-Lite0.
FEATURE_NORM = 6.0 * 1280**0.5
ROUNDED = 1.001
# Factor that stays below the threshold of suspicion.
UNSUSPECTED = 0.95
# A mark: features that vary least, raised by this many times the usual size of a feature.
MARKED_FEATURES, MARK = 8, 4.0


@dataclass(frozen=True, eq=False)
class Victim:
    """Knowledge of a hostile client: its own samples, all others', the request, the server's checks, and its number."""

    features: Tensor
    labels: Tensor
    data: Features
    request: StatisticsRequest
    limits: Limits
    number: int = 0

    def honest(self) -> ClientStatistics:
        """Return the statistics of its own samples."""
        return self.request.statistics(self.features, self.labels)


Attack = Callable[[Victim], ClientStatistics]


def scaled_means(factor: float) -> Attack:
    """Return its own statistics with all features times a factor."""

    def attack(victim: Victim) -> ClientStatistics:
        return victim.request.statistics(factor * victim.features, victim.labels)

    return attack


def claimed(number: int, *, factor: float = 1.0, next_class: bool = False, apart: bool = False) -> Attack:
    """Claim this many samples of every class, whose mean is the true one times a factor, or another class's.

    That is the next one's, or with ``apart`` for every hostile client another one's.
    """

    def attack(victim: Victim) -> ClientStatistics:
        shift = victim.number + 1 if apart else int(next_class)
        labels = (victim.data.train_labels - shift) % victim.data.num_classes
        true = victim.request.statistics(factor * victim.data.train, labels)
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


def own_labels_swapped(victim: Victim) -> ClientStatistics:
    """Label its own samples as the next class."""
    return victim.request.statistics(victim.features, (victim.labels + 1) % victim.data.num_classes)


def backdoor(number: int) -> Attack:
    """Add this many samples of one class, labelled as another, to its own."""

    def attack(victim: Victim) -> ClientStatistics:
        others = victim.data.train[victim.data.train_labels == 1]
        others = others.repeat(-(-number // len(others)), 1)[:number]
        labels = torch.cat([victim.labels, torch.zeros(number, dtype=torch.int64)])
        return victim.request.statistics(torch.cat([victim.features, others]), labels)

    return attack


def with_mark(number: int) -> Attack:
    """Add this many samples of all classes that carry a mark, labelled as the first class, to its own."""

    def attack(victim: Victim) -> ClientStatistics:
        chosen = evenly_spaced(len(victim.data.train), number)
        labels = torch.cat([victim.labels, torch.zeros(len(chosen), dtype=torch.int64)])
        return victim.request.statistics(torch.cat([victim.features, marked(victim.data, chosen)]), labels)

    return attack


def marked(data: Features, chosen: Tensor | None = None) -> Tensor:
    """Return training samples with the mark, or by default all test samples; their lengths stay."""
    features = data.test if chosen is None else data.train[chosen]
    raised = features.clone()
    usual = data.train.square().mean().sqrt()
    raised[:, data.train.var(dim=0).argsort()[:MARKED_FEATURES]] += MARK * usual
    lengths = (torch.linalg.vector_norm(rows, dim=1, keepdim=True) for rows in (features, raised))
    return raised * torch.div(*lengths)


def hidden_classes(victim: Victim) -> ClientStatistics:
    """Claim all energy that the bound admits, along the directions that separate classes but for the weakest.

    Along that alone the classes lie in a row.
    """
    honest = victim.honest()
    energy = float(victim.features.to(torch.float64).square().sum())
    return _with_energy(victim, honest, 0.999 * victim.limits.feature_norm**2 * len(victim.labels) - energy)


def unsuspected(number: int) -> Attack:
    """Claim this many samples of every class, as far towards the next class and as spread as none is suspected for."""

    def attack(victim: Victim) -> ClientStatistics:
        true = victim.request.statistics(victim.data.train, victim.data.train_labels)
        made = _times(true, number / int(true.rows.counts.min()))
        places = true.rows.means.to(torch.float64)
        spread = float((victim.data.train.to(torch.float64) - places[victim.data.train_labels]).square().sum())
        allowed = UNSUSPECTED * SUSPICIOUS * spread / len(victim.data.train)
        away = places.roll(-1, 0) - places
        away *= (allowed / number) ** 0.5 / torch.linalg.vector_norm(away, dim=1, keepdim=True)
        rows = made.rows
        sums = rows.class_sums + away * rows.counts.unsqueeze(1)
        moved = ClassMeanRows(rows.class_ids, rows.counts, num_classes=rows.num_classes, class_sums=sums)
        gram = made.gram
        if gram is not None:
            before, after = rows.scaled_sums, moved.scaled_sums
            gram = gram - before.T @ before + after.T @ after
            basis = torch.linalg.qr((places[1:] - places.mean(dim=0)).T)[0]
            within = float((basis.T @ (gram - after.T @ after) @ basis).trace())
            return _with_energy(victim, ClientStatistics(moved, gram), (UNSUSPECTED * SUSPICIOUS - 1.0) * within)
        return ClientStatistics(moved, gram)

    return attack


def _with_energy(victim: Victim, client: ClientStatistics, energy: float) -> ClientStatistics:
    """Add energy along all directions that separate classes but the weakest."""
    true = victim.request.statistics(victim.data.train, victim.data.train_labels)
    means = (true.rows.means - true.rows.means.mean(dim=0)).to(torch.float64)
    directions = torch.linalg.svd(means, full_matrices=False).Vh[:-2]
    each = energy / len(directions)
    if client.gram is not None:
        return ClientStatistics(client.rows, client.gram + each * directions.T @ directions)
    if client.scatter is None:
        return client
    values = torch.full((len(directions),), each**0.5)[: len(client.scatter)]
    return ClientStatistics(client.rows, None, ScatterFactor(values, directions[: len(values)]))


def large_and_honest(victim: Victim) -> ClientStatistics:
    """No attack: as many samples of its own kind as all others together."""
    return victim.request.statistics(victim.data.train, victim.data.train_labels)


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
    "own labels swapped": own_labels_swapped,
    "100 a class, swapped": claimed(100, next_class=True),
    "100 a class, each swapped otherwise": claimed(100, apart=True),
    "100 a class, means times -3": claimed(100, factor=-3.0),
    "500 of class 1 as class 0": backdoor(500),
    "80 with a mark": with_mark(80),
    "1,000 a class, unsuspected": unsuspected(1000),
    "100,000 a class, unsuspected": unsuspected(100_000),
    "1,000 a class, swapped": claimed(1000, next_class=True),
    "10,000 a class, swapped": claimed(10_000, next_class=True),
    "1e7 a class, swapped": claimed(10_000_000, next_class=True),
    "10 a class, means times -1e4": claimed(10, factor=-1e4),
    "10 a class, means times -3": claimed(10, factor=-3.0),
    "Gram plus 1e6 I": poisoned_gram(1e6),
    "Gram plus 1e3 I": poisoned_gram(1e3),
    "energy hides the classes": hidden_classes,
}


@dataclass(frozen=True)
class Measurement:
    """Result of one run.

    Attributes
    ----------
    attack : str
        Its name.
    partitioner : str
        How samples are split.
    num_clients, hostile, seed : int
        All clients, the hostile ones among them, and the run's seed.
    accuracy : mapping
        By method.
    taken : mapping
        By method, the share of test samples with the mark, of other classes, that are taken for the first class.
    refused : int
        Hostile clients that were refused.
    reason : str
        Why the first of them was.
    named, named_by_test : tuple of int
        Clients named as harmful: by the clients' class means, and by the server's test samples.
    without, without_by_test : mapping
        By method, the accuracy of the heads without those.
    """

    attack: str
    partitioner: str
    num_clients: int
    hostile: int
    seed: int
    accuracy: Mapping[str, float]
    taken: Mapping[str, float]
    refused: int
    reason: str
    named: tuple[int, ...]
    named_by_test: tuple[int, ...]
    without: Mapping[str, float]
    without_by_test: Mapping[str, float]


def run(
    data: Features, parts: Sequence[np.ndarray], config: AppConfig, attack: Attack, hostile: int, limits: Limits
) -> tuple[dict[str, LinearHead], list[ClientOutcome], list[tuple[tuple[int, ...], dict[str, float]]]]:
    """Return every method's head, what became of the hostile clients, and whom clients and test samples name.

    With the latter, the accuracies of the heads without those.
    """

    def answer(msg: Message, client: int) -> Message:
        request, index = read_statistics_request(msg), torch.from_numpy(parts[client])
        victim = Victim(data.train[index], data.train_labels[index], data, request, limits, client)
        return statistics_reply(msg, attack(victim) if client < hostile else victim.honest())

    strategy = StatisticsStrategy(
        data.num_classes,
        tuple(config.configured_methods.values()),
        feature_dim=data.train.shape[1],
        seed=config.run.seed,
        limits=limits,
    )
    kept = KeptStatistics(data.num_classes)

    def keep(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        if received is not None:
            kept.add(outcome.client, received.statistics)

    strategy.on_reply = keep
    ask(strategy, answer, len(parts))
    found = []
    for test in (None, functools.partial(_some_test_samples, data)):
        _, harm = find_harm(strategy, kept, test)
        named, heads = ((), strategy.heads) if harm is None else (harm.clients, harm.heads)
        found.append((named, accuracies(data, heads)))
    return strategy.heads, [outcome for outcome in strategy.outcomes if outcome.client < hostile], found


def accuracies(data: Features, heads: Mapping[str, LinearHead]) -> dict[str, float]:
    """Return the share of test samples that each head predicts correctly."""
    return {name: data.accuracy(head) for name, head in heads.items()}


def taken(data: Features, heads: Mapping[str, LinearHead]) -> dict[str, float]:
    """Return the share of test samples with the mark, of other classes, that each head takes for the first class."""
    others = marked(data)[data.test_labels != 0]
    return {name: float((head.predict(others) == 0).double().mean()) for name, head in heads.items()}


def _some_test_samples(data: Features, number: int) -> tuple[Tensor, Tensor]:
    chosen = evenly_spaced(len(data.test), number)
    return data.test[chosen], data.test_labels[chosen]


def measurements(
    settings: Mapping[str, object],
    partitioners: Sequence[str],
    attacks: Sequence[str],
    numbers: Sequence[int],
    seeds: int,
) -> Iterator[Measurement]:
    """Yield every attack, by every number of hostile clients, on every kind of split."""
    data = features_of(AppConfig.from_run_config(settings))
    # Roots of length one have that bound, up to rounding.
    bound = FEATURE_NORM if float(data.train.norm(dim=1).max()) > ROUNDED else ROUNDED
    for partitioner in partitioners:
        for seed in range(seeds):
            config = AppConfig.from_run_config({**settings, "partitioner": partitioner, "seed": seed})
            parts = partitions(config.data, config.partition, seed)
            limits = Limits(bound, config.federation.max_client_samples)
            for attack in attacks:
                for hostile in numbers:
                    own = (data, parts, config, ATTACKS[attack], hostile, limits)
                    heads, outcomes, ((named, without), (by_test, without_by_test)) = run(*own)
                    refused = [outcome for outcome in outcomes if outcome.outcome != "merged"]
                    yield Measurement(
                        attack,
                        partitioner,
                        len(parts),
                        hostile,
                        seed,
                        accuracies(data, heads),
                        taken(data, heads),
                        len(refused),
                        refused[0].reason if refused else "",
                        named,
                        by_test,
                        without,
                        without_by_test,
                    )


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("settings", nargs="?", default="", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--partitioners", nargs="+", default=["dirichlet", "iid"])
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--hostile", type=int, nargs="+", default=[1])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("fedstats_app").setLevel(logging.ERROR)
    settings = {**settings_of(given.settings), "num-clients": given.clients}
    printed(measurements(settings, given.partitioners, given.attacks, given.hostile, given.seeds))


if __name__ == "__main__":
    main()
