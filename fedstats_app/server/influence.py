"""Search for clients that harm the others, one or several together, once all have answered."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedstats_app.grid.collection import ClientOutcome
from fedstats_app.heads import LinearHead
from fedstats_app.heads.influence import Influence, Judges, basis_of, influence_of, spreads
from fedstats_app.methods import display_name
from fedstats_app.server.client_notes import ClientNotes
from fedstats_app.server.run import Run
from fedstats_app.statistics import ClientStatistics
from fedstats_app.statistics.collected import StatisticsSum, sum_without
from fedstats_app.strategies import StatisticsStrategy

logger = logging.getLogger("fedstats_app")

Clients: TypeAlias = Iterable[tuple[int, ClientStatistics]]
TestSamples: TypeAlias = Callable[[int], tuple[Tensor, Tensor]]

# More judges than this are thinned out evenly.
MAX_JUDGES = 1000
# A client is suspected if its statistics are spread this many times the usual. Class means that are not cannot
# draw a class away, however many samples they claim: their distance counts with the number of samples.
SUSPICIOUS = 2.0
# Sizes of the groups of most suspicious clients that are left out together. Several can hide each other's effect.
GROUPS = (1, 2, 5, 10, 20)
# With at least ten clients for each suspect, leaving all suspects out costs the others little. Smaller groups are tried
# only if that puts this share right of all judges, or of a class's: half of what counts as harm.
MANY_OTHERS, WORTH_ASKING = 10, (0.015, 0.25)
# Where clients' own means judge, leaving the group out is compared with leaving out this many groups of others in turn.
CONTROLS = 3
# Seconds after which no further group is tried. What those until then show is still checked by peers and clearing.
MOST_SECONDS = 60.0
# Of them are cleared again those that cost together less than this of all judges and of a class, or by more chance.
CLEARED = (0.01, 0.25, 0.05)


@dataclass(frozen=True)
class Harm:
    """Clients without which heads are better.

    Attributes
    ----------
    clients : tuple of int
        The most suspicious first.
    influences : mapping
        From method to what leaving all of them out does to its head.
    contradicting : frozenset of int
        Those whose own samples the others' head classifies otherwise.
    judges : str
        Who judged, in words.
    heads : mapping
        By method, of the others, with the feature map that they were solved for.
    """

    clients: tuple[int, ...]
    influences: Mapping[str, Influence]
    contradicting: frozenset[int]
    judges: str
    heads: Mapping[str, LinearHead]


@dataclass(frozen=True)
class Examined:
    """Clients as clients.jsonl lists them, sentences on those that harm others, and the accuracy without these."""

    outcomes: list[ClientOutcome]
    lines: list[str]
    without: dict[str, object] | None


def examine_clients(run: Run, strategy: StatisticsStrategy, notes: ClientNotes) -> Examined:
    """Find clients that harm the others, save their statistics so that they can be removed, and score heads without."""
    test_set, class_names, options = run.test_set, run.class_names, run.config.run
    suspicion, harm = find_harm(strategy, notes.kept, None if test_set is None else test_set.evenly_spaced)
    total = strategy.collection.total
    outcomes = _with_shares(strategy.outcomes, notes.kept, total, suspicion, class_names)
    if harm is None:
        return Examined(outcomes, [], None)
    for client, statistics in notes.kept if options.saves_sum else ():
        if client in harm.clients:
            notes.save(client, statistics)
    found = {} if test_set is None else test_set.evaluate(harm.heads)
    without = {name: matrix.accuracy for name, matrix in found.items()}
    lines = _harm_lines(harm, outcomes, class_names, str(run.folder.path))
    return Examined(outcomes, lines, {"clients": list(harm.clients), "accuracy": without})


def find_harm(
    strategy: StatisticsStrategy, kept: Clients, test: TestSamples | None
) -> tuple[dict[int, float], Harm | None]:
    """Suspect clients whose statistics lie apart, and name those without which any head of the run is much better.

    Parameters
    ----------
    strategy : StatisticsStrategy
    kept : iterable
        Clients and their statistics; read twice.
    test : callable or None
        Returns (n, d) features and (n,) labels of at most n of the server's test samples, which judge; without, the
        other clients' class means do.

    Returns
    -------
    dict
        From client to how many times the usual spread its statistics have.
    Harm or None
        None if there is none.
    """
    if test is None:
        judges = _judging_means(kept)
    else:
        features, labels = test(MAX_JUDGES)
        judges = Judges(features, labels, torch.full_like(labels, -1), torch.ones_like(labels, dtype=torch.float64))
    if not len(judges.labels):
        return {}, None
    places = judges.places(strategy.num_classes)
    spread_of = functools.partial(spreads, places=places, basis=basis_of(places))
    table: dict[int, Tensor] = {}
    sizes: dict[int, int] = {}
    for client, sent in kept:
        table[client], sizes[client] = spread_of(sent), int(sent.rows.num_examples)
    columns = torch.stack(list(table.values())).T if table else ()
    usual = torch.tensor(
        [float(column[column > 0].median()) if bool((column > 0).any()) else 1.0 for column in columns]
    )
    suspicion = {client: float((values / usual).amax()) for client, values in table.items()}
    suspected = [client for client in table if suspicion[client] >= SUSPICIOUS]
    suspects = sorted(suspected, key=lambda client: -suspicion[client])[: min(GROUPS[-1], len(table) // 2)]
    peers = _peers(suspicion, sizes, len(suspects)) if test is None else []
    owners = {client: place for place, client in enumerate(table)}
    tested = {client: (owners[client], sent) for client, sent in kept if client in {*suspects, *peers}}
    trials = _Trials(strategy, judges, tested)
    if MANY_OTHERS * len(suspects) <= len(table) and not trials.any_won(tuple(suspects)):
        return suspicion, None
    # All suspects together first, in case that the time is over before all groups are tried.
    sizes_tried = [len(suspects), *(size for size in GROUPS if size < len(suspects))] if suspects else []
    groups = [tuple(suspects[:size]) for size in sizes_tried]
    tried = [(trials.influences(group), group) for group in groups if group == groups[0] or trials.has_time]
    num_tried = len(groups) * len(strategy.methods())
    found = [
        (influence.gain + influence.class_gain, group)
        for influences, group in tried
        for name, influence in influences.items()
        if influence.is_large(num_tried)
        and all(trials.influences(group, than=other)[name].is_large(num_tried) for other in _instead(group, (), peers))
    ]
    if len(tried) < len(groups):
        logger.warning(
            "the search for sites that harm the others took more than %.0f s, so not all groups were tried",
            MOST_SECONDS,
        )
    if not found:
        return suspicion, None
    group = _cleared(max(found)[1], trials, peers)
    who = "the other sites' class means" if test is None else "the server's test samples"
    return suspicion, Harm(group, trials.influences(group), trials.contradicting(group), who, trials.heads(group))


def _peers(suspicion: Mapping[int, float], sizes: Mapping[int, int], number: int) -> list[int]:
    """Choose clients that are not suspected, at most half of them: of those with many samples the least suspicious.

    A head always fits the remaining clients a little better: leaving these out measures how much.
    """
    unsuspected = [client for client in suspicion if suspicion[client] < SUSPICIOUS]
    large = sorted(unsuspected, key=lambda client: -sizes[client])[: (len(unsuspected) + 1) // 2]
    return sorted(large, key=lambda client: suspicion[client])[: min(number + CONTROLS - 1, len(unsuspected) // 2)]


def _instead(group: tuple[int, ...], left: tuple[int, ...], peers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield those that are left of a group with as many peers as it has lost, each time others, as far as there are."""
    missing = len(group) - len(left)
    for first in range(min(CONTROLS, len(peers) - missing + 1)):
        yield (*left, *peers[first : first + missing])


def _cleared(group: tuple[int, ...], trials: _Trials, peers: Sequence[int]) -> tuple[int, ...]:
    """Take clients that do no harm out of a group, the least suspicious first, until all that are left do harm.

    Without many others an honest client can seem to cost something, so who stays is tried again when they are back.
    """
    left, before = group, None
    while left != before:
        before = left
        for client in reversed(before):
            fewer = tuple(member for member in left if member != client)
            others = next(_instead(group, fewer, peers), fewer)
            if not any(found.exceeds(*CLEARED) for found in trials.influences(group, than=others).values()):
                left = fewer
    return left


class _Trials:
    """Heads without some of the suspects or their peers, and who is classified correctly by them.

    ``sent`` has each suspect's and peer's place among all clients, as in ``judges.owners``, and its statistics.
    """

    def __init__(
        self,
        strategy: StatisticsStrategy,
        judges: Judges,
        sent: Mapping[int, tuple[int, ClientStatistics]],
    ) -> None:
        self._strategy, self._judges, self._sent = strategy, judges, sent
        self._total = strategy.collection.total
        self._heads: dict[tuple[int, ...], Mapping[str, LinearHead]] = {(): strategy.heads}
        self._until = time.monotonic() + MOST_SECONDS

    @property
    def has_time(self) -> bool:
        """True until no further group is to be tried."""
        return time.monotonic() < self._until

    def heads(self, group: tuple[int, ...]) -> Mapping[str, LinearHead]:
        """Solve every method's head without a group."""
        if group not in self._heads:
            self._heads[group] = self._strategy.solve(self._without(group))
        return self._heads[group]

    def any_won(self, group: tuple[int, ...]) -> bool:
        """Return whether any method gains noticeably many judges without a group, whatever others it loses.

        First if all judges were classified correctly, then by heads with the regularisers of the run's: to choose
        these again takes nearly all of the time.
        """
        before = {name: self._right(head) for name, head in self.heads(()).items()}

        def is_worth(after: Mapping[str, Tensor]) -> bool:
            won = self._compared(group, (), before, after).values()
            return any(found.gain >= WORTH_ASKING[0] or found.class_gain >= WORTH_ASKING[1] for found in won)

        if not is_worth({name: torch.ones_like(right) for name, right in before.items()}):
            return False
        methods = {
            name: method.regularised(self.heads(())[name].report) for name, method in self._strategy.methods().items()
        }
        heads = self._strategy.solve(self._without(group), methods)
        return is_worth({name: before[name] | self._right(head) for name, head in heads.items()})

    def influences(self, group: tuple[int, ...], *, than: tuple[int, ...] = ()) -> dict[str, Influence]:
        """Measure what leaving a group out, instead of those of ``than``, does to every method's head."""
        before, after = (
            {name: self._right(head) for name, head in self.heads(clients).items()} for clients in (than, group)
        )
        return self._compared(group, than, before, after)

    def contradicting(self, group: tuple[int, ...]) -> frozenset[int]:
        """Return those of a group most of whose samples, by the means of their rows, the others' first head misses.

        It mostly agrees with a client that has other cameras or other patients. It does not with swapped labels or
        mirrored means. Rows of classes that the group alone has say nothing.
        """
        head = next(iter(self.heads(group).values()))
        found = set()
        for client in group:
            rows = self._sent[client][1].rows
            known = head.present[rows.class_ids]
            wrong = known & (head.predict(rows.means.to(torch.float32)) != rows.class_ids)
            if 2 * int(rows.counts[wrong].sum()) > int(rows.counts[known].sum()):
                found.add(client)
        return frozenset(found)

    def _compared(
        self, group: tuple[int, ...], than: tuple[int, ...], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
    ) -> dict[str, Influence]:
        """Compare the judges classified correctly by each method's head before, without ``than``, and after."""
        judges = self._judges
        left = self._total.summed(gram=False).class_counts
        for client in group:
            left -= self._sent[client][1].rows.class_counts()
        owners = torch.tensor([self._sent[client][0] for client in {*group, *than}])
        votes = judges.votes * ((left[judges.labels] > 0) & ~torch.isin(judges.owners, owners))
        return {
            name: influence_of(before[name], after[name], votes, judges.labels, self._strategy.num_classes)
            for name in after
        }

    def _without(self, group: tuple[int, ...]) -> StatisticsSum:
        return sum_without(self._total, *(self._sent[client][1] for client in group))

    def _right(self, head: LinearHead) -> Tensor:
        return head.predict(self._judges.features) == self._judges.labels


def _with_shares(
    outcomes: list[ClientOutcome],
    kept: Clients,
    total: StatisticsSum,
    suspicion: Mapping[int, float],
    class_names: tuple[str, ...],
) -> list[ClientOutcome]:
    """Return outcomes with each merged client's share of all samples and of every class, and its spread."""
    counts, num_examples = total.summed(gram=False).class_counts.tolist(), max(total.num_examples, 1)
    position = {outcome.client: index for index, outcome in enumerate(outcomes) if outcome.outcome == "merged"}
    shown = list(outcomes)
    for client, statistics in kept:
        own_counts = statistics.rows.class_counts()
        own = {c: int(own_counts[c]) for c in own_counts.nonzero()[:, 0].tolist()}
        shown[position[client]] = replace(
            shown[position[client]],
            share=round(sum(own.values()) / num_examples, 4),
            class_shares={class_names[c]: round(number / counts[c], 4) for c, number in own.items()},
            times_usual_spread=round(suspicion[client], 2) if client in suspicion else None,
        )
    return shown


def _harm_lines(harm: Harm, outcomes: list[ClientOutcome], class_names: tuple[str, ...], folder: str) -> list[str]:
    """Say in words who harms the others, what heads gain without them, and how to get these."""
    shares = {outcome.client: outcome.share for outcome in outcomes}
    lines = []
    contradict = [client for client in harm.clients if client in harm.contradicting]
    differ = [client for client in harm.clients if client not in harm.contradicting]
    contradicts = "contradicts" if len(contradict) == 1 else "contradict"
    for some, verb, why in (
        (contradict, contradicts, "their head puts most of these samples into other classes"),
        (differ, "differ from", "as a site with other cameras, people or classes may"),
    ):
        if some:
            who = f"site{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
            share = f"({100 * math.fsum(shares[client] for client in some):.1f}% of all samples)"
            lines.append(f"{who} {share} {verb} the others: {why}")
    gains = []
    for name, found in harm.influences.items():
        worst = f" and {100 * found.class_gain:.0f}% of class {class_names[found.worst_class]!r}"
        gains.append(
            f"{display_name(name)}'s head is right on {100 * found.gain:.1f}% more of {harm.judges}"
            f"{worst if found.worst_class >= 0 else ''}"
        )
    flags = " ".join(f"--client {client}" for client in harm.clients)
    return [*lines, "without: " + "; ".join(gains), f"heads without: fedstats remove {folder} {flags}"]


def _judging_means(kept: Clients) -> Judges:
    """Return one mean of every client and class, at most `MAX_JUDGES` of them, evenly spaced.

    Their owners are places among the clients: Flower's node ids are larger than any tensor holds.
    """
    pairs = sum(len(torch.unique(sent.rows.class_ids)) for _, sent in kept)
    step, seen = max(math.ceil(pairs / MAX_JUDGES), 1), 0
    empty = torch.zeros(0, dtype=torch.int64)
    means, counts, labels, owners = [], [empty], [empty], [empty]
    for place, (_, sent) in enumerate(kept):
        rows = sent.rows
        first = torch.cat([torch.ones(min(len(rows), 1), dtype=torch.bool), rows.class_ids.diff() > 0]).nonzero()[:, 0]
        chosen = first[(seen + torch.arange(len(first))) % step == 0]
        seen += len(first)
        if len(chosen):
            means.append(rows.chosen(chosen).means)
            counts.append(rows.counts[chosen])
            labels.append(rows.class_ids[chosen])
            owners.append(torch.full_like(chosen, place))
    stacked = torch.cat(means) if means else torch.zeros(0, 0, dtype=torch.float64)
    return Judges.of_means(stacked, torch.cat(counts), torch.cat(labels), torch.cat(owners))
