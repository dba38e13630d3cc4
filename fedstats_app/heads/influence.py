"""What one client does to the others: how FedNCM's head classifies judges' samples with it and without."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import normalize_rows
from fedstats_app.statistics import ClassMeanRows

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


class LeaveOneOut:
    """FedNCM's head on judges, of all clients and with single ones left out.

    Parameters
    ----------
    counts : Tensor
        (C,) samples of all clients.
    sums : Tensor
        (C, d) class sums of all clients.
    judges : Judges
        At least one.
    """

    def __init__(self, counts: Tensor, sums: Tensor, judges: Judges) -> None:
        self._counts, self._sums, self._judges = counts.clone(), sums.to(torch.float64).clone(), judges
        self._features = judges.features.to(torch.float32)
        self._refresh()

    def remove(self, rows: ClassMeanRows) -> None:
        """Leave a client out for good."""
        self._sums.index_add_(0, rows.class_ids, -rows.class_sums.to(torch.float64))
        self._counts.index_add_(0, rows.class_ids, -rows.counts)
        self._refresh()

    def influence(self, owner: int, rows: ClassMeanRows) -> Influence:
        """Return what leaving out the client at this place, with these rows, does to the judges that are not its own.

        Judges of a class that only this client has are left out too: nothing can be said of them.
        """
        classes, position = torch.unique(rows.class_ids, return_inverse=True)
        sums, counts = self._sums[classes], self._counts[classes]
        sums.index_add_(0, position, -rows.class_sums.to(torch.float64))
        counts.index_add_(0, position, -rows.counts)
        scores = self._scores.clone()
        scores[:, classes] = self._score(sums, counts)
        known = self._counts > 0
        known[classes] = counts > 0
        labels = self._judges.labels
        asked = (self._judges.owners != owner) & known[labels]
        if not bool(asked.any()):
            return Influence()
        gained = (scores.argmax(dim=1) == labels).to(torch.int64) - self._correct
        of_class = torch.zeros(len(known), dtype=torch.int64).index_add_(0, labels[asked], gained[asked])
        judges = torch.bincount(labels[asked], minlength=len(known))
        shares = torch.where(judges >= MIN_JUDGES_OF_CLASS, of_class / judges.clamp(min=1), 0.0)
        worst = int(shares.argmax())
        total, share = int(of_class.sum()), float(shares[worst])
        return Influence(total / int(asked.sum()), total, share, worst if share > 0 else -1)

    def _refresh(self) -> None:
        self._scores = self._score(self._sums, self._counts)
        self._correct = (self._scores.argmax(dim=1) == self._judges.labels).to(torch.int64)

    def _score(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return (n, c) scores; that of a class without samples is the lowest."""
        means, _ = normalize_rows(sums / counts.clamp(min=1).unsqueeze(1))
        scores = self._features @ means.to(torch.float32).T
        return torch.where(counts > 0, scores, -torch.inf)
