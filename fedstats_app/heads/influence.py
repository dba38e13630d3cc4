"""Influence of clients on the others: outlying statistics, and what heads gain without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstats_app.heads.paired import sign_test
from fedstats_app.statistics import ClientStatistics, TriangularFactor

# Least number of judges of a class for a gain of that class.
MIN_JUDGES_OF_CLASS = 8
# Samples from which on a client's class mean has a whole vote; one of fewer has a smaller part, for who has a few
# samples of every class could else say whom the others name.
WHOLE_VOTE = 20
# Level of the sign test over all groups and heads of a run: the probability that a group is named by chance alone.
# Honest clients with other data can be named too, as in one of 132 federations without a hostile client
# (research/attacks.md).
SIGNIFICANCE = 0.01


@dataclass(frozen=True, eq=False)
class Judges:
    """Labelled features by which heads are compared: test samples, or features made of clients' class means.

    Attributes
    ----------
    features : Tensor
        (n, d) floating point.
    labels : Tensor
        (n,) int64 in [0, C).
    owners : Tensor
        (n,) int64, index of the client that the feature comes from, which does not judge itself; -1 for the server.
    votes : Tensor
        (n,) float64, what each counts for, from 0 to 1.
    """

    features: Tensor
    labels: Tensor
    owners: Tensor
    votes: Tensor

    @classmethod
    def of_means(cls, means: Tensor, counts: Tensor, labels: Tensor, owners: Tensor) -> Judges:
        """Make a judge of each client's mean of a class, as hard to classify as one sample.

        The mean of n samples deviates from its class sqrt(n) times less than a sample. So its distance from the median
        of the class is multiplied by sqrt(n).

        Parameters
        ----------
        means : Tensor
            (n, d) floating point.
        counts, labels, owners : Tensor
            (n,) int64.
        """
        votes = counts.clamp(max=WHOLE_VOTE).to(torch.float64)
        made = cls(means, labels, owners, votes / votes.max() if len(votes) else votes)
        if not len(labels):
            return made
        centers = made.places(int(labels.max()) + 1)[labels]
        away = (means - centers) * counts.to(torch.float64).sqrt().unsqueeze(1)
        return replace(made, features=(centers + away).to(torch.float32))

    def places(self, num_classes: int) -> Tensor:
        """Return (C, d) float64 centres of the classes, NaN for those without judges.

        A centre is the mean of the server's own judges, else the median of the clients' in each coordinate, which a
        minority cannot move far.
        """
        found = torch.full((num_classes, self.features.shape[1]), torch.nan, dtype=torch.float64)
        own = not len(self.owners) or int(self.owners[0]) < 0
        for class_id in torch.unique(self.labels).tolist():
            of_class = self.features[self.labels == class_id].to(torch.float64)
            found[class_id] = of_class.mean(dim=0) if own else of_class.median(dim=0).values
        return found


@dataclass(frozen=True)
class Influence:
    """Effect of leaving some clients out.

    Attributes
    ----------
    gain : float
        Judges classified correctly without them, minus those with them, as a share of all. Positive: they do harm.
    class_gain : float
        The largest gain of one class, as a share of its judges; 0 if no class has MIN_JUDGES_OF_CLASS judges.
    worst_class : int
        That class, -1 if there is none.
    chance : float
        P-value of the gain, overall or in a class: the smaller of two one-sided sign tests over the whole votes of the
        judges that change sides, that of classes times their number.
    """

    gain: float = 0.0
    class_gain: float = 0.0
    worst_class: int = -1
    chance: float = 1.0

    def exceeds(self, gain: float, class_gain: float, chance: float) -> bool:
        """Return whether either gain reaches its threshold with a p-value below `chance`."""
        return (self.gain >= gain or self.class_gain >= class_gain) and self.chance < chance

    def is_large(self, num_measured: int) -> bool:
        """Return whether the gain is large, 3 in 100 judges or half of a class, and not explained by chance.

        Parameters
        ----------
        num_measured : int
            Number of influences measured in the run, of all groups on all heads, for Bonferroni's correction.
        """
        return self.exceeds(0.03, 0.5, SIGNIFICANCE / num_measured)


def influence_of(
    right_with: Tensor, right_without: Tensor, votes: Tensor, labels: Tensor, num_classes: int
) -> Influence:
    """Compare two heads by the judges that they classify correctly.

    Parameters
    ----------
    right_with, right_without : Tensor
        (n,) bool of every judge: correct with the clients, and without them.
    votes : Tensor
        (n,) float64 that each counts for, from 0 to 1.
    labels : Tensor
        (n,) int64 of the judges, in [0, num_classes).
    """
    if not bool(votes.any()):
        return Influence()
    won, lost, judges = (
        torch.bincount(labels, votes * chosen, minlength=num_classes)
        for chosen in (right_without & ~right_with, right_with & ~right_without, torch.ones_like(right_with))
    )
    several = judges >= MIN_JUDGES_OF_CLASS
    shares = torch.where(several, (won - lost) / judges.clamp(min=1), 0.0)
    worst, total = int(shares.argmax()), float((won - lost).sum())
    share = max(float(shares[worst]), 0.0)
    chance = sign_test(int(won.sum()), int(lost.sum())) if total > 0 else 1.0
    if share > 0:
        chance = min(chance, int(several.sum()) * sign_test(int(won[worst]), int(lost[worst])))
    return Influence(total / float(votes.sum()), share, worst if share > 0 else -1, chance)


def evenly_spaced(num_samples: int, number: int) -> Tensor:
    """Return (m,) int64 positions of at most ``number`` samples, ascending, from the first to the last."""
    return torch.linspace(0, max(num_samples - 1, 0), min(number, num_samples)).to(torch.int64)


def spreads(client: ClientStatistics, places: Tensor, basis: Tensor) -> Tensor:
    """Return the spread of a client's statistics, as (3,) float64 mean squared distances.

    The first is that of its rows' means from the centres of their classes, times the samples of a row, which has the
    same expectation for any number of samples. The second is that of samples from the means of their rows, the third
    its part along the basis. Statistics that a client did not send give 0.

    Parameters
    ----------
    client : ClientStatistics
    places : Tensor
        (C, d) float64 centres; NaN for a class without one.
    basis : Tensor
        (d, k) float64, orthonormal: the directions in which the centres differ.
    """
    rows, within = client.rows, client.within
    counts = rows.counts.to(torch.float64)
    away = (counts * (rows.means - places[rows.class_ids]).square().sum(dim=1)).nan_to_num()
    known = int((~places[rows.class_ids, 0].isnan()).sum())
    scatter, along = counts.new_zeros(()), counts.new_zeros(())
    if isinstance(within, TriangularFactor):
        scatter, along = within.trapezoid.square().sum(), (within.trapezoid @ basis).square().sum()
    elif within is not None:
        scatter, along = within.trace(), (within @ basis * basis).sum()
    elif client.scatter is not None:
        scatter = counts.new_tensor(sum(client.scatter.energies) + client.scatter.left_out)
        along = (client.scatter.scaled() @ basis).square().sum()
    freedom = max(rows.num_examples - len(rows), 1)
    return torch.stack([away.sum() / max(known, 1), scatter / freedom, along / freedom])


def basis_of(places: Tensor) -> Tensor:
    """Return (d, k) orthonormal directions that span the differences of the classes' centres."""
    known = places[~places.isnan().any(dim=1)]
    if len(known) < 2:
        return places.new_zeros(places.shape[1], 0)
    basis: Tensor = torch.linalg.qr((known[1:] - known.mean(dim=0)).T)[0]
    return basis
