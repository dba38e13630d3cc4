"""What one client does to the others: how heads classify judges' samples with it and without.

FedNCM's head tells what class sums do. Fed3R's, a ridge regression, tells what a Gram matrix does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.class_scatter import needed_gram
from fedstats_app.heads.fedroot import complete
from fedstats_app.heads.linear_head import normalize_rows
from fedstats_app.heads.linear_system import solve_shifted
from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.statistics import ClientStatistics, FeatureStatistics

# A class's judges say something of that class from so many on.
MIN_JUDGES_OF_CLASS = 8


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
        Judges classified correctly without the client, less those with it, as a share of them. Positive: it harms.
    num_gained : int
        The same as a number of judges.
    class_gain : float
        The largest share of one class, 0 where no class has MIN_JUDGES_OF_CLASS judges.
    worst_class : int
        That class, -1 where there is none.
    """

    gain: float = 0.0
    num_gained: int = 0
    class_gain: float = 0.0
    worst_class: int = -1

    @property
    def is_large(self) -> bool:
        """Whether the client harms: 3 in 100 judges and 3 at least, or half of a class.

        In clean runs nobody is: benchmarks/attacks.py has some, also with one client that has half of all samples.
        """
        return (self.gain >= 0.03 and self.num_gained >= 3) or self.class_gain >= 0.5


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

    def _influence(self, owner: int, counts: Tensor, scores: Tensor, scores_without: Tensor) -> Influence:
        """Return it from (n, C) scores with and without, and the (C,) counts without."""
        known, labels = counts > 0, self._judges.labels
        asked = (self._judges.owners != owner) & known[labels]
        if not bool(asked.any()):
            return Influence()
        gained = self._correct(scores_without) - self._correct(scores)
        of_class = torch.zeros(len(known), dtype=torch.int64).index_add_(0, labels[asked], gained[asked])
        judges = torch.bincount(labels[asked], minlength=len(known))
        shares = torch.where(judges >= MIN_JUDGES_OF_CLASS, of_class / judges.clamp(min=1), 0.0)
        worst = int(shares.argmax())
        total, share = int(of_class.sum()), float(shares[worst])
        return Influence(total / int(asked.sum()), total, share, worst if share > 0 else -1)

    def _correct(self, scores: Tensor) -> Tensor:
        return (scores.argmax(dim=1) == self._judges.labels).to(torch.int64)


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
        self._scores = self._score(self._sums, self._counts)

    def remove(self, client: ClientStatistics) -> None:
        """Leave a client out for good."""
        rows = client.rows
        self._sums.index_add_(0, rows.class_ids, -rows.class_sums.to(torch.float64))
        self._counts.index_add_(0, rows.class_ids, -rows.counts)
        self._scores = self._score(self._sums, self._counts)

    def influence(self, owner: int, client: ClientStatistics) -> Influence:
        """Return what leaving out this client does to the judges that are not its own."""
        rows = client.rows
        classes, position = torch.unique(rows.class_ids, return_inverse=True)
        sums, counts = self._sums[classes], self._counts[classes]
        sums.index_add_(0, position, -rows.class_sums.to(torch.float64))
        counts.index_add_(0, position, -rows.counts)
        scores, left = self._scores.clone(), self._counts.clone()
        scores[:, classes], left[classes] = self._score(sums, counts), counts
        return self._influence(owner, left, self._scores, scores)

    def _score(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return (n, c) scores; that of a class without samples is the lowest."""
        means, _ = normalize_rows(sums / counts.clamp(min=1).unsqueeze(1))
        scores = self._features @ means.to(torch.float32).T
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
        return self._influence(owner, left.class_counts, self._scores, self._score(left))

    def _without(self, client: ClientStatistics) -> FeatureStatistics:
        left, own = self._total.clone(), client.rows.summed()
        left.class_counts.sub_(own.class_counts)
        left.class_sums.sub_(own.class_sums)
        needed_gram(left, "ridge").sub_(second_moment(client))
        return left

    def _score(self, statistics: FeatureStatistics) -> Tensor:
        # A report of how well the system is conditioned would take most of the time, and nobody reads it.
        gram = needed_gram(statistics, "ridge")
        solved = solve_shifted(gram, self._ridge_lambda, statistics.class_sums.T)
        if solved is None:
            weight = solve_ridge(statistics, ridge_lambda=self._ridge_lambda).weight
        else:
            weight, _ = normalize_rows(solved.T)
        scores = self._features @ weight.to(torch.float32).T
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
