"""Every client's shares of the samples, and what leaving it out does: measured when all have answered, and said."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.grid.kept_statistics import KeptStatistics, LargestStatistics
from fedstats_app.heads import solve_ridge
from fedstats_app.heads.fedroot import complete
from fedstats_app.heads.influence import Influence, Judges, LeaveOneOut, LeaveOneOutOfGram, LeaveOneOutOfMeans
from fedstats_app.methods import FED3R, FEDROOT, first_of
from fedstats_app.methods.method import FEW_FEATURES
from fedstats_app.server.asking import Asked
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureMap, FeatureStatistics, StatisticsSum
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.threads import beside_each_other

Clients: TypeAlias = Iterable[tuple[int, tuple[ClientStatistics, ...]]]
TestSamples: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]

# More judges than this, or than so many multiplications allow for all clients together, are thinned out evenly.
MAX_JUDGES, MIN_JUDGES, MAX_PRODUCTS = 1000, 200, 40_000_000_000
# No Gram matrix with more features than this is measured: each takes a solve.
MAX_GRAM_DIM = 4096
# Heads on which clients are measured: FedNCM's and a ridge regression's.
MAX_HEADS = 2
# Those whose influence is large are named, the worst first, each measured without the ones before.
MAX_NAMED = 10


@dataclass(frozen=True)
class Influences:
    """What was measured on one head.

    Attributes
    ----------
    head : str
        The method's name, as users see it.
    of_client : mapping
        From every client that was measured to its influence.
    named : tuple of int
        Those whose influence is large, the worst first.
    contradicting : frozenset of int
        Those of them whose own samples the head without them classifies otherwise.
    judges : str
        Who judged, in words.
    """

    head: str
    of_client: Mapping[int, Influence]
    named: tuple[int, ...]
    contradicting: frozenset[int]
    judges: str


def measured_clients(
    strategy: StatisticsStrategy, asked: Asked, test: TestSamples | None, class_names: tuple[str, ...]
) -> tuple[list[ClientOutcome], list[str]]:
    """Outcomes with every client's shares and influence, and a line for each client whose influence is large."""
    measured = measure(strategy, asked.kept, asked.largest, test)
    kept, total = strategy.collection.capped or asked.kept, strategy.collection.statistics(0)
    outcomes = with_shares(strategy.outcomes, kept, total, measured, class_names)
    return outcomes, influence_lines(measured, outcomes, class_names)


def measure(
    strategy: StatisticsStrategy,
    kept: KeptStatistics,
    largest: LargestStatistics,
    test: TestSamples | None,
) -> list[Influences]:
    """Measure what leaving each client out does to FedNCM's head, and where clients sent more, to a ridge regression.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Finished.
    kept, largest
        What was kept of the first specification's replies: the rows of all clients, and all of those with the largest
        Gram matrices. Where shares are capped the strategy itself has it, and ``largest`` is filled here.
    test : callable or None
        Gives (n, d) features and (n,) labels of at most so many of the server's test samples, which judge; without, the
        other clients' class means do, each with one vote. These are easier to classify, so that they tell of less harm.

    Returns
    -------
    list of Influences
        Of each head that was measured.
    """
    capped, total = strategy.collection.capped, strategy.collection.statistics(0)
    if capped is not None:
        for client, (statistics, *_) in capped:
            largest.add(client, statistics)
    clients: Clients = kept if capped is None else capped
    places = {client: place for place, client in enumerate((kept if capped is None else capped).clients)}
    judges = _judges(clients, total, strategy.request.specs[0].feature_map, test)
    if not len(judges.labels):
        return []
    who = "the other clients' class means" if test is None else "the server's test samples"
    summed = total.summed()
    means = LeaveOneOutOfMeans(summed.class_counts, summed.class_sums, judges)
    measured = [_measure("FedNCM", means, clients, places, who)]
    if total.has_scatter and not total.has_gram:
        low_rank = total.low_rank()
        summed = complete(low_rank.rows, low_rank.scatter, low_rank.left_out, shaped=False)
    if summed.gram is not None and total.feature_dim <= MAX_GRAM_DIM:
        grams = LeaveOneOutOfGram(summed, _ridge_lambda(strategy, summed), judges)
        head, beside = "Fed3R" if total.has_gram else "FedRoot", total.feature_dim <= FEW_FEATURES
        measured.append(_measure(head, grams, largest, places, who, beside=beside))
    return measured


def _ridge_lambda(strategy: StatisticsStrategy, total: FeatureStatistics) -> float:
    """Return that of a head of the run on these features, or where there is none the one that would be chosen."""
    for name in (first_of(FED3R, strategy.heads), first_of(FEDROOT, strategy.heads)):
        head = strategy.heads.get(name)
        if head is not None and strategy.spec_index(name) == 0 and "ridge_lambda" in head.report.parameters:
            return head.report.parameters["ridge_lambda"]
    return solve_ridge(total, ridge_lambda="auto").report.parameters["ridge_lambda"]


def _measure(
    head: str, left: LeaveOneOut, clients: Clients, places: Mapping[int, int], who: str, *, beside: bool = False
) -> Influences:
    """Measure every client, perhaps beside each other, and name those with a large influence, the worst first."""
    found: dict[int, Influence] = {}
    named: list[int] = []
    contradicting: set[int] = set()
    num_measured = MAX_HEADS * len(places)
    client_at = {place: client for client, place in places.items()}
    while True:
        left_out = (
            (places[client], statistics[0])
            for client, statistics in clients
            if client not in named and client in places
        )
        if beside:
            influences = beside_each_other(functools.partial(_influence, left, *one) for one in left_out)
        else:
            influences = list(left.influences(left_out))
        found |= {client_at[place]: influence for place, influence in influences}
        worst = max(
            (client for client in found if client not in named and found[client].is_large(num_measured)),
            key=lambda client: (found[client].gain, found[client].class_gain),
            default=None,
        )
        if worst is None or len(named) == MAX_NAMED:
            return Influences(head, found, tuple(named), frozenset(contradicting), who)
        named.append(worst)
        its = next(statistics[0] for client, statistics in clients if client == worst)
        if left.contradicts(its):
            contradicting.add(worst)
        left.remove(its)


def _influence(left: LeaveOneOut, place: int, statistics: ClientStatistics) -> tuple[int, Influence]:
    return place, left.influence(place, statistics)


def with_shares(
    outcomes: list[ClientOutcome],
    kept: Clients,
    total: StatisticsSum,
    measured: Sequence[Influences],
    class_names: tuple[str, ...],
) -> list[ClientOutcome]:
    """Return outcomes with each merged client's share of all samples and of every class, and its largest influence."""
    counts, num_examples = total.summed(gram=False).class_counts.tolist(), max(total.num_examples, 1)
    position = {outcome.client: index for index, outcome in enumerate(outcomes) if outcome.outcome == "merged"}
    shown = list(outcomes)
    for client, rows in _rows(kept):
        own: Counter[int] = Counter()
        for c, number in zip(rows.class_ids.tolist(), rows.counts.tolist(), strict=True):
            own[c] += number
        shares = {class_names[c]: round(number / counts[c], 4) for c, number in sorted(own.items())}
        found = [(one.of_client[client], one.head) for one in measured if client in one.of_client]
        influence, head = max(found, key=lambda one: one[0].gain, default=(None, ""))
        shown[position[client]] = replace(
            shown[position[client]],
            share=round(own.total() / num_examples, 4),
            class_shares=shares,
            influence=None if influence is None else round(influence.gain, 4),
            class_influence=None if influence is None else round(influence.class_gain, 4),
            influence_on=head,
        )
    return shown


def influence_lines(
    measured: Sequence[Influences], outcomes: list[ClientOutcome], class_names: tuple[str, ...]
) -> list[str]:
    """Return in words, a line each, whose influence on a head is large."""
    shares = {outcome.client: outcome.share for outcome in outcomes}
    lines = []
    for influences in measured:
        for client in influences.named:
            found = influences.of_client[client]
            how = (
                "contradicts the others: their head puts most of its samples into other classes. "
                if client in influences.contradicting
                else "differs from the others, as a site with other cameras, people or classes may. "
            )
            worst = f", and on {100 * found.class_gain:.0f}% of class {class_names[found.worst_class]!r}"
            lines.append(
                f"client {client} ({100 * shares[client]:.1f}% of all samples) {how}Without it {influences.head}'s "
                f"head is right on {100 * found.gain:.1f}% more of {influences.judges}"
                f"{worst if found.worst_class >= 0 else ''}"
            )
    return lines


def _rows(kept: Clients) -> Iterator[tuple[int, ClassMeanRows]]:
    return ((client, statistics[0].rows) for client, statistics in kept)


def _judges(kept: Clients, total: StatisticsSum, feature_map: FeatureMap, test: TestSamples | None) -> Judges:
    number = min(max(MAX_PRODUCTS // max(total.num_pairs * total.feature_dim, 1), MIN_JUDGES), MAX_JUDGES)
    if test is None:
        return _of_clients(kept, number)
    features, labels = test(number)
    return Judges(feature_map(features), labels, torch.full_like(labels, -1))


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
