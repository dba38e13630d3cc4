"""What class means foretell of a client's training of a head, around which its answers are judged and cut.

Updates of honest clients with different classes differ by far more than a liar needs. Most of that difference follows
from how many samples of each class a client has, which the server knows from the first stage: at the class means, each
as often as the client has the class, it takes the steps that the client takes. What an answer is away from that varies
much less between clients. Centred clipping (Karimireddy et al., ICML 2021) cuts around one centre for all; here every
client has its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

WEIGHT, BIAS = "head.weight", "head.bias"
# At most this many steps, as long together, stand for all of a client's: they follow its curve, not every turn.
MOST_STEPS = 8


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """Class means of all clients together, and how many samples of each class each client has declared.

    Attributes
    ----------
    means : Tensor
        (C, D) float32, of the features that the head takes; rows of classes without samples are 0.
    counts : mapping
        From client to (C,) int64. Of a client that is not in it, or has no samples, nothing is foretold.

    Raises
    ------
    ValueError
        If shapes differ, or a count is negative.
    """

    means: Tensor
    counts: Mapping[int, Tensor]

    def __post_init__(self) -> None:
        if self.means.dim() != 2 or any(one.shape != self.means.shape[:1] for one in self.counts.values()):
            raise ValueError(f"means must be (C, D) and counts (C,), got means {tuple(self.means.shape)}")
        if any(bool((one < 0).any()) for one in self.counts.values()):
            raise ValueError("counts must be at least 0, got one below")

    @classmethod
    def of_sums(cls, class_counts: Tensor, class_sums: Tensor, counts: Mapping[int, Tensor]) -> ClassMeans:
        """Divide (C, D) sums of features by the (C,) counts of samples that they are over."""
        means = class_sums.double() / class_counts.clamp_min(1).double().unsqueeze(1)
        return cls(means.float(), counts)

    def shares(self, client: int) -> Tensor | None:
        """Compute the (C,) float32 shares of the classes in a client's samples; None if it has none or is unknown."""
        counts = self.counts.get(client)
        return (counts.double() / counts.sum()).float() if counts is not None and bool(counts.any()) else None

    def _residuals(self, head: Mapping[str, Tensor], classes: Tensor, temperature: float) -> Tensor:
        """Compute the derivative of the cross-entropy by the head's output at the means of (m,) classes, (m, C)."""
        weight, bias = (head[name].to("cpu", torch.float32) for name in (WEIGHT, BIAS))
        logits = (self.means[classes] @ weight.T + bias) / temperature
        return (torch.softmax(logits, dim=1) - F.one_hot(classes, len(self.means))) / temperature

    def update(
        self,
        client: int,
        trained: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        *,
        rate: float,
        steps: int,
        temperature: float = 1.0,
    ) -> dict[str, Tensor]:
        """Foretell how a number of steps of gradient descent change the trained part of a head.

        Parameters
        ----------
        client : int
            If nothing is known of it, nothing is foretold: the answer is empty.
        trained, fixed : mapping
            ``head.weight`` (C, D) and ``head.bias`` (C,), one here or there; logits are divided by the ``temperature``.
        rate, steps
            Of the client's SGD.
        """
        shares = self.shares(client)
        if shares is None:
            return {}
        classes = shares.nonzero()[:, 0]
        inputs, weights = self.means[classes], shares[classes].unsqueeze(1)
        taken, number = dict(trained), min(steps, MOST_STEPS)
        for _ in range(number):
            residuals = weights * self._residuals({**fixed, **taken}, classes, temperature)
            gradient = {WEIGHT: residuals.T @ inputs, BIAS: residuals.sum(dim=0)}
            taken = {name: tensor - rate * steps / number * gradient[name] for name, tensor in taken.items()}
        return {name: taken[name] - tensor for name, tensor in trained.items()}


def fitting(changes: Mapping[str, Tensor], foretold: Mapping[str, Tensor]) -> float | None:
    """Find by what factor the foretold tensors come closest to the changes of these names; None if they are 0 or none.

    Closest is by the sum of all squares, in float64.
    """
    square = sum(float(one.double().square().sum()) for one in foretold.values())
    along = sum(float((changes[name].double() * one.double()).sum()) for name, one in foretold.items())
    return along / square if square > 0.0 else None


def common_factor(factors: Iterable[float | None]) -> float:
    """Choose one factor for all that is foretold: the median of those of single clients, or 0 if it is negative.

    At its mean a class is surer than its samples are, and momentum makes steps longer: both for all clients alike.
    Where half of them go against what is foretold, nothing is.
    """
    known = [one for one in factors if one is not None]
    return max(0.0, statistics.median(known)) if known else 0.0
