"""What one client does to the others: how heads classify judges' samples with it and without.

FedNCM's head tells what class sums do. Fed3R's, a ridge regression, tells what a Gram matrix does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.fedroot import complete
from fedstats_app.heads.linear_head import normalize_rows, solve_shifted
from fedstats_app.heads.paired import sign_test
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.heads.scatter import needed_gram
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics

# A class's judges say something of that class from so many on.
MIN_JUDGES_OF_CLASS = 8
# Probability that an honest federation has any client named.
SIGNIFICANCE = 0.01
# Of a judge's best classes so many are remembered: whoever leaves with fewer classes leaves one of them as it was.
REMEMBERED = 32
# Rows of clients, one after another, are scored so many at a time.
ROWS_TOGETHER = 1024


@dataclass(frozen=True, eq=False)
class Judges:
    """Labelled features that tell a good head from a bad one: test samples, or one class mean of every client.

    Attributes
    ----------
    features : Tensor
        (n, d) floating point.
    labels : Tensor
        (n,) int64 in [0, C).
    owners : Tensor
        (n,) int64, the client whose feature it is, by its place; nobody judges itself. -1 for the server's own.
    """

    features: Tensor
    labels: Tensor
    owners: Tensor


@dataclass(frozen=True)
class Influence:
    """What leaving one client out does.

    Attributes
    ----------
    gain : float
        Judges classified correctly without the client, less those with it, as a share of them. Positive: it costs.
    num_gained : int
        The same as a number of judges.
    class_gain : float
        The largest share of one class, 0 where no class has MIN_JUDGES_OF_CLASS judges.
    worst_class : int
        That class, -1 where there is none.
    chance : float
        Probability of such a gain, or of such a gain in a class, if the client changed nothing but by chance: the
        smaller of two one-sided sign tests over the judges that change sides, that of classes times their number.
    """

    gain: float = 0.0
    num_gained: int = 0
    class_gain: float = 0.0
    worst_class: int = -1
    chance: float = 1.0

    def is_large(self, num_measured: int) -> bool:
        """Whether the gain is large, 3 in 100 judges or half of a class, and more than chance.

        Parameters
        ----------
        num_measured : int
            Influences measured in the run, of all clients on all heads: the more, the more of them are large by chance
            (Bonferroni's correction).
        """
        return (self.gain >= 0.03 or self.class_gain >= 0.5) and self.chance * num_measured < SIGNIFICANCE


def evenly_spaced(num_samples: int, number: int) -> Tensor:
    """Return which samples to take where not all are wanted.

    Parameters
    ----------
    num_samples : int
        That there are.
    number : int
        That are wanted at most.

    Returns
    -------
    Tensor
        (m,) int64 positions, ascending, from the first sample to the last.
    """
    return torch.linspace(0, max(num_samples - 1, 0), min(number, num_samples)).to(torch.int64)


class LeaveOneOut(ABC):
    """A head on judges, of all clients and with single ones left out.

    Parameters
    ----------
    counts : Tensor
        (C,) samples of all clients.
    judges : Judges
        Who judge.
    """

    def __init__(self, counts: Tensor, judges: Judges) -> None:
        self._counts, self._judges = counts.clone(), judges
        self._features = judges.features.to(torch.float32)

    @abstractmethod
    def remove(self, client: ClientStatistics) -> None:
        """Leave a client out for good."""

    @abstractmethod
    def influence(self, owner: int, client: ClientStatistics) -> Influence:
        """Return what leaving out this client does to the judges that are not its own.

        Judges of a class that only this client has are left out too: nothing can be said of them.

        Parameters
        ----------
        owner : int
            The client's place, as in ``judges.owners``.
        client : ClientStatistics
            What was added of it.
        """

    def influences(self, clients: Iterable[tuple[int, ClientStatistics]]) -> Iterator[tuple[int, Influence]]:
        """Yield what leaving out each of these does, by their places, in their order."""
        return ((owner, self.influence(owner, client)) for owner, client in clients)

    @abstractmethod
    def _without_on(self, client: ClientStatistics, features: Tensor) -> tuple[Tensor, Tensor]:
        """Score (n, d) features by the head without a client: (n, C) scores, and (C,) counts without it."""

    def contradicts(self, client: ClientStatistics) -> bool:
        """Whether the head without a client puts most of its samples, by the means of their rows, into other classes.

        The others' head mostly agrees with a client that has other cameras or other patients. It does not with swapped
        labels or mirrored means. Rows of classes that the client alone has say nothing.
        """
        rows = client.rows
        scores, counts = self._without_on(client, (rows.class_sums / rows.counts.unsqueeze(1)).to(torch.float32))
        known = counts[rows.class_ids] > 0
        wrong = known & (scores.argmax(dim=1) != rows.class_ids)
        return 2 * int(rows.counts[wrong].sum()) > int(rows.counts[known].sum())

    def _influence(self, owner: int, counts: Tensor, gained: Tensor) -> Influence:
        """Measure from the (C,) counts without, and of every judge (n,) whether it is classified correctly then.

        That is 1 where it is so without the client only, -1 where with it only.
        """
        known, labels = counts > 0, self._judges.labels
        asked = (self._judges.owners != owner) & known[labels]
        if not bool(asked.any()):
            return Influence()
        won = torch.bincount(labels[asked & (gained > 0)], minlength=len(known))
        lost = torch.bincount(labels[asked & (gained < 0)], minlength=len(known))
        judges = torch.bincount(labels[asked], minlength=len(known))
        shares = torch.where(judges >= MIN_JUDGES_OF_CLASS, (won - lost) / judges.clamp(min=1), 0.0)
        worst, total = int(shares.argmax()), int((won - lost).sum())
        share, num_classes = float(shares[worst]), int((judges >= MIN_JUDGES_OF_CLASS).sum())
        chance = sign_test(int(won.sum()), int(lost.sum())) if total > 0 else 1.0
        if share > 0:
            chance = min(chance, num_classes * sign_test(int(won[worst]), int(lost[worst])))
        return Influence(total / int(asked.sum()), total, share, worst if share > 0 else -1, chance)

    def _correct(self, predictions: Tensor) -> Tensor:
        return (predictions == self._judges.labels).to(torch.int64)


class LeaveOneOutOfMeans(LeaveOneOut):
    """FedNCM's head: only the scores of a client's own classes are new.

    Parameters
    ----------
    counts : Tensor
        (C,) samples of all clients.
    sums : Tensor
        (C, d) class sums of all clients.
    judges : Judges
        Who judge.
    """

    def __init__(self, counts: Tensor, sums: Tensor, judges: Judges) -> None:
        super().__init__(counts, judges)
        self._sums = sums.to(torch.float64).clone()
        self._remember()

    def remove(self, client: ClientStatistics) -> None:
        """Leave a client out for good."""
        rows = client.rows
        self._sums.index_add_(0, rows.class_ids, -rows.class_sums.to(torch.float64))
        self._counts.index_add_(0, rows.class_ids, -rows.counts)
        self._remember()

    def influence(self, owner: int, client: ClientStatistics) -> Influence:
        """Return what leaving out this client does to the judges that are not its own."""
        return next(self.influences([(owner, client)]))[1]

    def _without_on(self, client: ClientStatistics, features: Tensor) -> tuple[Tensor, Tensor]:
        own = client.rows.summed()
        counts = self._counts - own.class_counts
        return self._score(self._sums - own.class_sums, counts, features), counts

    def influences(self, clients: Iterable[tuple[int, ClientStatistics]]) -> Iterator[tuple[int, Influence]]:
        """Yield what leaving out each of these does, by their places, in their order.

        The classes of many clients are scored in one product: a client has few, and a product for each costs more.
        """
        waiting: list[tuple[int, ClassMeanRows]] = []
        num_rows = 0
        for owner, client in clients:
            waiting.append((owner, client.rows))
            num_rows += len(client.rows)
            if num_rows >= ROWS_TOGETHER:
                yield from self._without(waiting)
                waiting, num_rows = [], 0
        yield from self._without(waiting)

    def _without(self, clients: Sequence[tuple[int, ClassMeanRows]]) -> Iterator[tuple[int, Influence]]:
        """Yield the influence of clients given as their places and rows."""
        if not clients:
            return
        num_classes, rows = len(self._counts), [one for _, one in clients]
        order = torch.arange(len(clients)).repeat_interleave(torch.tensor([len(one) for one in rows]))
        pairs, position = torch.unique(
            num_classes * order + torch.cat([one.class_ids for one in rows]), return_inverse=True
        )
        order, classes = pairs // num_classes, pairs % num_classes
        sums, counts = self._sums[classes], self._counts[classes]
        sums.index_add_(0, position, -torch.cat([one.class_sums for one in rows]).to(torch.float64))
        counts.index_add_(0, position, -torch.cat([one.counts for one in rows]))
        scores = self._score(sums, counts)
        moving = set(order[self._may_move(classes, scores)].tolist())
        numbers = torch.bincount(order, minlength=len(clients)).tolist()
        own_scores = torch.split(scores, numbers, dim=1)
        of_clients = zip(torch.split(classes, numbers), torch.split(counts, numbers), own_scores, strict=True)
        for number, ((owner, _), (own, left, of_own)) in enumerate(zip(clients, of_clients, strict=True)):
            if number not in moving:
                yield owner, Influence()
                continue
            judges = self._moved(own, of_own)
            predictions = self._with_new_scores(judges, own, of_own[judges])
            gained = torch.zeros_like(self._right)
            gained[judges] = (predictions == self._judges.labels[judges]).to(torch.int64) - self._right[judges]
            if not bool(gained.any()):
                yield owner, Influence()
                continue
            known = self._counts.clone()
            known[own] = left
            yield owner, self._influence(owner, known, gained)

    def _may_move(self, classes: Tensor, scores: Tensor) -> Tensor:
        """Return (c,) bool: classes whose new scores (n, c) may give at least one judge another prediction."""
        is_best = torch.zeros(len(self._counts), dtype=torch.bool)
        is_best[self._best_classes[:, 0]] = True
        return is_best[classes] | (scores >= self._best[:, :1]).any(dim=0)

    def _moved(self, classes: Tensor, of_classes: Tensor) -> Tensor:
        """Return the judges, ascending, whose predictions may be others where (c,) classes have new scores (n, c).

        Of all others the best class keeps its score, and no new score reaches it.
        """
        new = torch.zeros(self._scores.shape[1], dtype=torch.bool)
        new[classes] = True
        return (new[self._best_classes[:, 0]] | (of_classes.amax(dim=1) >= self._best[:, 0])).nonzero()[:, 0]

    def _remember(self) -> None:
        """Keep every judge's best classes and their scores, and who is classified correctly."""
        scores = self._score(self._sums, self._counts)
        # Stable: of equal scores the first class is predicted.
        best, classes = scores.sort(dim=1, descending=True, stable=True)
        self._best, self._best_classes = best[:, :REMEMBERED].clone(), classes[:, :REMEMBERED].clone()
        self._scores, self._right = scores, self._correct(self._best_classes[:, 0])

    def _with_new_scores(self, judges: Tensor, classes: Tensor, of_classes: Tensor) -> Tensor:
        """Return (j,) predictions of judges where (c,) classes, ascending, have new scores (j, c)."""
        if len(classes) >= self._best.shape[1]:
            scores = self._scores[judges]
            scores[:, classes] = of_classes
            return scores.argmax(dim=1)
        new = torch.zeros(self._scores.shape[1], dtype=torch.bool)
        new[classes] = True
        best, best_classes = self._best[judges], self._best_classes[judges]
        kept = (~new[best_classes]).to(torch.int8).argmax(dim=1, keepdim=True)  # the first that is as it was
        best_kept, kept_class = best.gather(1, kept)[:, 0], best_classes.gather(1, kept)[:, 0]
        best_new, place = of_classes.max(dim=1)
        new_class = classes[place]
        is_new = (best_new > best_kept) | ((best_new == best_kept) & (new_class < kept_class))
        return torch.where(is_new, new_class, kept_class)

    def _score(self, sums: Tensor, counts: Tensor, features: Tensor | None = None) -> Tensor:
        """Score features, by default the judges': (n, c); that of a class without samples is the lowest."""
        means, _ = normalize_rows(sums / counts.clamp(min=1).unsqueeze(1))
        scores = (self._features if features is None else features) @ means.to(torch.float32).T
        return torch.where(counts > 0, scores, -torch.inf)


class LeaveOneOutOfGram(LeaveOneOut):
    """Fed3R's head at one lambda: a solve for every client, O(d^3).

    Parameters
    ----------
    total : FeatureStatistics
        Of all clients, with a Gram matrix.
    ridge_lambda : float
        Of the head with all clients and without one: what a client does to the choice of lambda is not in it.
    judges : Judges
        Who judge.
    """

    def __init__(self, total: FeatureStatistics, ridge_lambda: float, judges: Judges) -> None:
        super().__init__(total.class_counts, judges)
        self._total, self._ridge_lambda = total.clone(), ridge_lambda
        self._scores = self._score(self._total)

    def remove(self, client: ClientStatistics) -> None:
        """Leave a client out for good."""
        self._total = self._without(client)
        self._counts = self._total.class_counts
        self._scores = self._score(self._total)

    def influence(self, owner: int, client: ClientStatistics) -> Influence:
        """Return what leaving out this client does to the judges that are not its own."""
        left = self._without(client)
        gained = self._correct(self._score(left).argmax(dim=1)) - self._correct(self._scores.argmax(dim=1))
        return self._influence(owner, left.class_counts, gained)

    def _without_on(self, client: ClientStatistics, features: Tensor) -> tuple[Tensor, Tensor]:
        left = self._without(client)
        return self._score(left, features), left.class_counts

    def _without(self, client: ClientStatistics) -> FeatureStatistics:
        left, own = self._total.clone(), client.rows.summed()
        left.class_counts.sub_(own.class_counts)
        left.class_sums.sub_(own.class_sums)
        needed_gram(left, "ridge").sub_(second_moment(client))
        return left

    def _score(self, statistics: FeatureStatistics, features: Tensor | None = None) -> Tensor:
        # A report of how well the system is conditioned would take most of the time, and nobody reads it.
        gram = needed_gram(statistics, "ridge")
        solved = solve_shifted(gram, self._ridge_lambda, statistics.class_sums.T)
        if solved is None:
            weight = solve_ridge(statistics, ridge_lambda=self._ridge_lambda).weight
        else:
            weight, _ = normalize_rows(solved.T)
        scores = (self._features if features is None else features) @ weight.to(torch.float32).T
        return torch.where(statistics.class_counts > 0, scores, -torch.inf)


def second_moment(client: ClientStatistics) -> Tensor:
    """Return a client's (d, d) float64 Gram matrix, completed by FedRoot's rule without a shape where it sent a factor.

    Raises
    ------
    ValueError
        If it sent neither.
    """
    if client.gram is not None:
        return client.gram
    if client.scatter is None:
        raise ValueError("a second moment needs a Gram matrix or a factor of the scatter, got neither")
    factor = client.scatter.scaled()
    completed = complete(client.rows, factor.T @ factor, client.scatter.left_out, shaped=False)
    return needed_gram(completed, "ridge")


def energy(client: ClientStatistics) -> float:
    """Return the trace of :func:`second_moment`, without forming it; 0 where there is none."""
    if client.gram_factor is not None:
        return float(client.gram_factor.trapezoid.square().sum())
    if client.gram is not None:
        return float(client.gram.trace())
    if client.scatter is None:
        return 0.0
    of_rows = client.rows.class_sums.to(torch.float64).square().sum(dim=1) / client.rows.counts
    return float(of_rows.sum()) + sum(client.scatter.energies) + client.scatter.left_out
