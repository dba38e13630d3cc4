"""Policy of a node's owner: floors for class counts and Gram matrices, and the methods served.

The mean of a class with one sample is that sample's feature vector, from which an image can be recovered; with few it
is not much better. The span of a Gram matrix of n < d samples is that of their features. So a class under the floor
leaves in no form, and an owner can refuse Gram matrices of few samples, or altogether by the choice of methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.methods import Need
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.training.limits import NO_LIMITS, RefusedByPolicy, RequestLimits

# A Gram matrix of fewer samples than this many times its dimension is warned of.
SAMPLES_PER_DIMENSION = 2
# Of fewer samples, beyond the rows, a direction of the scatter says much of each (research/inversion.md).
SAMPLES_PER_DIRECTION = 10


@dataclass(frozen=True)
class NodePolicy:
    """The rules of one node.

    Attributes
    ----------
    min_class_count : int
        A class of which the node has fewer readable samples for statistics than this leaves in no form: neither count,
        nor sum, nor mean, nor as a part of the Gram matrix. 0 for no floor; 1 suppresses nothing either.
    min_gram_samples : int or None
        Of fewer samples nothing of mapped features leaves, and in place of a Gram matrix or a complete factor of the
        scatter a few directions (:meth:`protected`). 0 for no limit; None for twice the dimension of the features.
    allowed : mapping or None
        From what the node works for to the statistics that it may need, None where that is none; None for all.
    limits : RequestLimits
        Of single requests.

    Raises
    ------
    ValueError
        If a number is negative.
    """

    min_class_count: int = 0
    min_gram_samples: int | None = 0
    allowed: Mapping[str, frozenset[Need] | None] | None = None
    limits: RequestLimits = NO_LIMITS

    def __post_init__(self) -> None:
        for name in ("min_class_count", "min_gram_samples"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @property
    def min_samples_per_mean(self) -> int:
        """Samples that share a mean where a class has several means: the floor, and never one sample alone."""
        return max(self.min_class_count, 2)

    def allowed_classes(self, labels: Tensor, num_classes: int, persons: Tensor | None = None) -> Tensor:
        """Return (C,) bool: the classes with as many of these labels (n,), int64 in [0, C), as the floor asks.

        Of persons (n,), int64, it asks for as many different ones.
        """
        return distinct(labels, num_classes, persons) >= max(self.min_class_count, 1)

    def evaluable(self, labels: Tensor, num_classes: int, persons: Tensor | None = None) -> Tensor:
        """Return which of the samples with these labels (n,) may be evaluated, (n,) bool.

        All, but where the samples of classes with fewer than the floor are together fewer too.
        """
        few = distinct(labels, num_classes, persons)[labels] < self.min_class_count
        number = int(few.sum()) if persons is None else len(torch.unique(persons[few]))
        return torch.full_like(few, fill_value=number >= self.min_class_count) | ~few

    def check_specification(self, spec: StatisticsSpec) -> None:
        """Refuse a request for statistics that no allowed method needs."""
        if self.allowed is None:
            return
        needs = [needed for needed in self.allowed.values() if needed is not None]
        if not needs:
            raise RefusedByPolicy(f"statistics are needed by none of this node's {self._in_words}")
        for need in Need.of(spec):
            if not any(need in needed for needed in needs):
                raise RefusedByPolicy(f"{need.value}: needed by none of this node's {self._in_words}")

    def shares_gram(self, num_examples: int, dim: int) -> bool:
        """Return whether a Gram matrix of these samples in ``dim`` dimensions may leave; of none it says nothing."""
        if self.min_gram_samples is None:
            return not says_much_about_samples(num_examples, dim)
        return not 0 < num_examples < self.min_gram_samples

    def check_gram(self, spec: StatisticsSpec, num_examples: int, feature_dim: int, *, expanded: bool) -> None:
        """Refuse what says as much as a Gram matrix of too few samples, and nothing can stand in for.

        Sums of a class's features that a map has ``expanded`` are as many equations for its samples. that
        has to be exact (``exact-sums``) can be no other. The refusal does not say how many samples there are. Where
        persons are named, numbers are of persons, here and in :meth:`protected`.
        """
        exact = spec.gram and spec.fraction_bits is not None
        if (expanded or exact) and not self.shares_gram(num_examples, feature_dim):
            refused = "statistics of mapped features (feature-map)" if expanded else "an exact Gram matrix"
            raise RefusedByPolicy(f"{refused}: this node has too few samples for it (min-gram-samples)")

    def protected(
        self, spec: StatisticsSpec, client: ClientStatistics, num_examples: int, smallest: int | None = None
    ) -> ClientStatistics:
        """Return what may leave: with too few samples for a Gram matrix, no more directions than say little of each.

        None at all where with earlier releases it would tell of a ``smallest`` group of too few.

        A Gram matrix, or a factor of all directions, gives back every sample of up to as many as features
        (research/inversion.md). The largest directions, one for ten samples beyond the rows, are those of the classes;
        the energy of the others is one number. So a site with very few sends rows and that number.
        """
        dim, together = client.rows.feature_dim, smallest is None or self.shares_gram(smallest, client.rows.feature_dim)
        if not (spec.gram or spec.sends_scatter) or (self.shares_gram(num_examples, dim) and together):
            return client
        factor = client.scatter_factor()
        most = max(num_examples - len(client.rows), 0) // SAMPLES_PER_DIRECTION if together else 0
        scatter = None if factor is None else factor.cut(most)
        return ClientStatistics(client.rows, scatter=scatter, targets=client.targets)

    @property
    def _in_words(self) -> str:
        return f"allowed-methods ({', '.join(self.allowed or ()) or 'none'})"


def distinct(groups: Tensor, number: int, persons: Tensor | None = None) -> Tensor:
    """Count the persons of each group, (number,) int64, by the group (n,) of each sample; else samples."""
    if persons is not None:
        groups = torch.unique(torch.stack([groups, persons]), dim=1)[0]
    return torch.bincount(groups, minlength=number)


def says_much_about_samples(num_examples: int, dim: int) -> bool:
    """Return whether a Gram matrix of these samples in ``dim`` dimensions is close to the samples themselves."""
    return 0 < num_examples < SAMPLES_PER_DIMENSION * dim
