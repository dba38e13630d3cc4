"""Influence of clients on the others: outlying statistics, and what heads gain without them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.paired import sign_test
from fedstats_app.statistics import ClientStatistics, TriangularFactor

# A class's judges say something of that class from so many on.
MIN_JUDGES_OF_CLASS = 8
# Level of the sign test over all groups and heads of a run: how often a group is named by chance alone. Honest clients
# whose data differ can be named too: in one of 132 federations without a hostile client (research/attacks.md).
SIGNIFICANCE = 0.01


@dataclass(frozen=True, eq=False)
class Judges:
    """Labelled features that tell a good head from a bad one: test samples, or what clients' class means say of such.

    Attributes
    ----------
    features : Tensor
        (n, d) floating point.
    labels : Tensor
        (n,) int64 in [0, C).
    owners : Tensor
        (n,) int64, the place of the client whose feature it is, which does not judge itself; -1 for the server's own.
    """

    features: Tensor
    labels: Tensor
    owners: Tensor

    @classmethod
    def of_means(cls, means: Tensor, counts: Tensor, labels: Tensor, owners: Tensor) -> Judges:
        """Make one judge of each client's mean of a class, as hard to classify as one sample.

        A mean of n samples deviates from its class as a sample does, but over the root of n: it is moved so many times
        as far from the median of the class.

        Parameters
        ----------
        means : Tensor
            (n, d) floating point.
        counts, labels, owners : Tensor
            (n,) int64.
        """
        if not len(labels):
            return cls(means, labels, owners)
        centers = cls(means, labels, owners).places(int(labels.max()) + 1)[labels]
        away = (means - centers) * counts.to(torch.float64).sqrt().unsqueeze(1)
        return cls((centers + away).to(torch.float32), labels, owners)

    def places(self, num_classes: int) -> Tensor:
        """Return (C, d) float64 where classes lie, NaN for those without judges.

        That is the mean of the server's own judges, else the median of the clients' in each coordinate, which a
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
        Judges classified correctly without them, less those with them, as a share of all. Positive: they cost.
    class_gain : float
        The largest share of one class, 0 where no class has MIN_JUDGES_OF_CLASS judges.
    worst_class : int
        That class, -1 where there is none.
    chance : float
        Probability of such a gain, or of such a gain in a class, if they changed nothing but by chance: the smaller of
        two one-sided sign tests over the judges that change sides, that of classes times their number.
    """

    gain: float = 0.0
    class_gain: float = 0.0
    worst_class: int = -1
    chance: float = 1.0

    def exceeds(self, gain: float, class_gain: float, chance: float) -> bool:
        """Return whether either gain reaches its threshold with a p-value below `chance`."""
        return (self.gain >= gain or self.class_gain >= class_gain) and self.chance < chance

    def is_large(self, num_measured: int) -> bool:
        """Return whether the gain is large, 3 in 100 judges or half of a class, and more than chance.

        Parameters
        ----------
        num_measured : int
            Influences measured in the run, of all groups on all heads: the more, the more of them are large by chance
            (Bonferroni's correction).
        """
        return self.exceeds(0.03, 0.5, SIGNIFICANCE / num_measured)


def influence_of(
    right_with: Tensor, right_without: Tensor, asked: Tensor, labels: Tensor, num_classes: int
) -> Influence:
    """Compare two heads by who is classified correctly.

    Parameters
    ----------
    right_with, right_without, asked : Tensor
        (n,) bool of every judge: correct with the clients, without them, and whether it judges.
    labels : Tensor
        (n,) int64 of the judges, in [0, num_classes).
    """
    if not bool(asked.any()):
        return Influence()
    gained = right_without.to(torch.int64) - right_with.to(torch.int64)
    won, lost, judges = (
        torch.bincount(labels[asked & which], minlength=num_classes)
        for which in (gained > 0, gained < 0, torch.ones_like(asked))
    )
    several = judges >= MIN_JUDGES_OF_CLASS
    shares = torch.where(several, (won - lost) / judges.clamp(min=1), 0.0)
    worst, total = int(shares.argmax()), int((won - lost).sum())
    share = int((won - lost)[worst]) / max(int(judges[worst]), 1) if bool(several[worst]) else 0.0
    chance = sign_test(int(won.sum()), int(lost.sum())) if total > 0 else 1.0
    if share > 0:
        chance = min(chance, int(several.sum()) * sign_test(int(won[worst]), int(lost[worst])))
    return Influence(total / int(asked.sum()), max(share, 0.0), worst if share > 0 else -1, chance)


def evenly_spaced(num_samples: int, number: int) -> Tensor:
    """Return (m,) int64 positions of at most so many of the samples, ascending, from the first to the last."""
    return torch.linspace(0, max(num_samples - 1, 0), min(number, num_samples)).to(torch.int64)


def spreads(client: ClientStatistics, places: Tensor, basis: Tensor) -> Tensor:
    """Return how far a client's statistics are spread, as (3,) float64 mean squared distances.

    Those of the means of its rows from the places of their classes, times the samples of a row, whose expectation is
    the same for any number of samples; those of samples from the means of their rows; and the latter along the basis.
    What a client did not send is 0.

    Parameters
    ----------
    client : ClientStatistics
    places : Tensor
        (C, d) float64; NaN where a class has no place.
    basis : Tensor
        (d, k) float64, orthonormal: what tells classes apart.
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
    """Return (d, k) orthonormal directions that span the differences of the classes' places."""
    known = places[~places.isnan().any(dim=1)]
    if len(known) < 2:
        return places.new_zeros(places.shape[1], 0)
    basis: Tensor = torch.linalg.qr((known[1:] - known.mean(dim=0)).T)[0]
    return basis
