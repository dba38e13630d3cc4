"""Every client's shares of the samples, and what leaving it out does: measured when all have answered, and said."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from fedstats_app.heads.influence import Influence, Judges, LeaveOneOut
from fedstats_app.outcomes.client_outcome import ClientOutcome
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureMap, StatisticsSum

Clients: TypeAlias = Iterable[tuple[int, tuple[ClientStatistics, ...]]]

# More judges than this, or than so many multiplications allow for all clients together, are thinned out evenly.
MAX_JUDGES, MIN_JUDGES, MAX_PRODUCTS = 1000, 200, 40_000_000_000
# Clients beyond what fits into so many bytes on disk are not measured.
MAX_KEPT_BYTES = 4 * 2**30
# Those who harm are named, the worst first, each measured without the ones before.
MAX_NAMED = 10


@dataclass(frozen=True)
class Influences:
    """What was measured.

    Attributes
    ----------
    of_client : mapping
        From every client that was measured to its influence.
    named : tuple of int
        Those whose influence is large, the worst first.
    judges : str
        Who judged, in words.
    """

    of_client: Mapping[int, Influence]
    named: tuple[int, ...]
    judges: str


def measure(kept: Clients, total: StatisticsSum, feature_map: FeatureMap, test_set: ServerTestSet | None) -> Influences:
    """Measure what leaving each client out does to FedNCM's head.

    Parameters
    ----------
    kept : iterable
        The clients with their statistics, as often as they are asked for.
    total : StatisticsSum
        Of these clients, and perhaps more.
    feature_map : FeatureMap
        Of these statistics.
    test_set : ServerTestSet or None
        Whose samples judge; without, the other clients' class means do, each with one vote.
    """
    summed = total.summed()
    size = max(total.num_pairs * total.feature_dim, 1)
    number = min(max(MAX_PRODUCTS // size, MIN_JUDGES), MAX_JUDGES)
    judges = _of_clients(kept, number) if test_set is None else _of_test_set(test_set, feature_map, number)
    who = "the other clients' class means" if test_set is None else "the server's test samples"
    if not len(judges.labels):
        return Influences({}, (), who)
    left = LeaveOneOut(summed.class_counts, summed.class_sums, judges)
    found: dict[int, Influence] = {}
    named: list[int] = []
    while True:
        found |= {
            client: left.influence(place, rows)
            for place, (client, rows) in enumerate(_rows(kept))
            if client not in named
        }
        worst = max(
            (client for client in found if client not in named and found[client].is_large),
            key=lambda client: (found[client].gain, found[client].class_gain),
            default=None,
        )
        if worst is None or len(named) == MAX_NAMED:
            return Influences(found, tuple(named), who)
        named.append(worst)
        left.remove(next(rows for client, rows in _rows(kept) if client == worst))


def with_shares(
    outcomes: list[ClientOutcome],
    kept: Clients,
    total: StatisticsSum,
    influences: Influences,
    class_names: tuple[str, ...],
) -> list[ClientOutcome]:
    """Return outcomes with each merged client's share of all samples and of every class, and its influence."""
    counts, num_examples = total.summed().class_counts, max(total.num_examples, 1)
    position = {outcome.client: index for index, outcome in enumerate(outcomes) if outcome.outcome == "merged"}
    measured = list(outcomes)
    for client, rows in _rows(kept):
        own = rows.summed().class_counts
        shares = {class_names[c]: round(int(own[c]) / int(counts[c]), 4) for c in own.nonzero().squeeze(1).tolist()}
        influence = influences.of_client.get(client)
        measured[position[client]] = replace(
            measured[position[client]],
            share=round(int(rows.num_examples) / num_examples, 4),
            class_shares=shares,
            influence=None if influence is None else round(influence.gain, 4),
            class_influence=None if influence is None else round(influence.class_gain, 4),
        )
    return measured


def influence_lines(influences: Influences, outcomes: list[ClientOutcome], class_names: tuple[str, ...]) -> list[str]:
    """Return in words, a line each, whose influence is large."""
    shares = {outcome.client: outcome.share for outcome in outcomes}
    lines = []
    for client in influences.named:
        found = influences.of_client[client]
        worst = f", and on {100 * found.class_gain:.0f}% of class {class_names[found.worst_class]!r}"
        lines.append(
            f"client {client} ({100 * shares[client]:.1f}% of all samples) harms: without it FedNCM's head is right on "
            f"{100 * found.gain:.1f}% more of {influences.judges}{worst if found.worst_class >= 0 else ''}"
        )
    return lines


def _rows(kept: Clients) -> Iterator[tuple[int, ClassMeanRows]]:
    return ((client, statistics[0].rows) for client, statistics in kept)


def _of_clients(kept: Clients, number: int) -> Judges:
    """Return one mean of every client and class, or so many of them, evenly spaced.

    Their owners are places among the clients: Flower's node ids are larger than any tensor holds.
    """
    pairs = sum(len(torch.unique(rows.class_ids)) for _, rows in _rows(kept))
    step, seen = max(math.ceil(pairs / number), 1), 0
    empty = torch.zeros(0, dtype=torch.int64)
    features, labels, owners = [], [empty], [empty]
    for place, (_, rows) in enumerate(_rows(kept)):
        first = torch.cat([torch.ones(min(len(rows), 1), dtype=torch.bool), rows.class_ids.diff() > 0]).nonzero()[:, 0]
        chosen = first[(seen + torch.arange(len(first))) % step == 0]
        seen += len(first)
        if len(chosen):
            features.append((rows.class_sums[chosen] / rows.counts[chosen].unsqueeze(1)).to(torch.float32))
            labels.append(rows.class_ids[chosen])
            owners.append(torch.full_like(chosen, place))
    return Judges(torch.cat(features) if features else torch.zeros(0, 0), torch.cat(labels), torch.cat(owners))


def _of_test_set(test_set: ServerTestSet, feature_map: FeatureMap, number: int) -> Judges:
    labels = torch.cat([labels for _, labels in test_set.blocks])
    chosen = torch.linspace(0, max(len(labels) - 1, 0), min(number, len(labels))).to(torch.int64)
    features = test_set.features()[chosen]
    return Judges(feature_map(features), labels[chosen], torch.full_like(chosen, -1))
