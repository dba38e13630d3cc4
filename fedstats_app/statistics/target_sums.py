"""Sums over samples whose targets are a matrix Y (n, C): several labels, as 0 and 1, or numbers.

One-hot labels are the special case of :class:`fedstats_app.statistics.FeatureStatistics`. An unknown target counts as
the mean of those that are known, so that it adds nothing to the centred product of targets and features.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import ROWS_PER_BLOCK, Addable, check_tensor


@dataclass(frozen=True, eq=False)
class TargetSums(Addable):
    """Sums by target, over the samples for which it is known; a commutative monoid under ``+``.

    Attributes
    ----------
    kind : tuple of str
        One, "labels" (0 or 1) or "numbers".
    known : Tensor
        (C,) int64, samples of which the target is known.
    known_sums : Tensor
        (C, d) float64, sums of their features.
    sums, squares : Tensor
        (C,) float64, of the targets y and of y^2; of labels both are the number of positive samples.
    products : Tensor
        (C, d) float64, sums of y times the features; of labels the sums of the positive samples' features.

    Raises
    ------
    ValueError
        If shapes or dtypes disagree with the above.
    """

    kind: tuple[str, ...]
    known: Tensor
    known_sums: Tensor
    sums: Tensor
    squares: Tensor
    products: Tensor

    def __post_init__(self) -> None:
        number = len(self.known)
        check_tensor("known", self.known, (None,), torch.int64)
        check_tensor("known_sums", self.known_sums, (number, None), torch.float64)
        check_tensor("products", self.products, tuple(self.known_sums.shape), torch.float64)
        for name in ("sums", "squares"):
            check_tensor(name, getattr(self, name), (number,), torch.float64)

    @classmethod
    def zeros(cls, kind: str, num_targets: int, feature_dim: int) -> TargetSums:
        """Return the identity of ``+``."""
        matrix = torch.zeros(num_targets, feature_dim, dtype=torch.float64)
        vector, known = torch.zeros(num_targets, dtype=torch.float64), torch.zeros(num_targets, dtype=torch.int64)
        return cls((kind,), known, matrix, vector, vector.clone(), matrix.clone())

    def add_(self, features: Tensor, targets: Tensor) -> None:
        """Add samples, in place: (n, d) features and (n, C) float64 targets, NaN where one is unknown."""
        for block, values in zip(*(torch.split(part, ROWS_PER_BLOCK) for part in (features, targets)), strict=True):
            x, known = block.to("cpu", torch.float64), ~values.isnan()
            y = values.nan_to_num(nan=0.0)
            self.known.add_(known.sum(dim=0))
            self.known_sums.addmm_(known.to(torch.float64).T, x)
            self.sums.add_(y.sum(dim=0))
            self.squares.add_(y.square().sum(dim=0))
            self.products.addmm_(y.T, x)

    def empty(self) -> TargetSums:
        """Return the identity of ``+`` for these."""
        return TargetSums.zeros(self.kind[0], *self.known_sums.shape)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The sums by name."""
        return {member.name: getattr(self, member.name) for member in fields(self) if member.name != "kind"}

    def placed(self, ids: Tensor, number: int) -> TargetSums:
        """Return sums of ``number`` targets, of which these are those at ``ids`` (C,); the others are zero."""
        total = TargetSums.zeros(self.kind[0], number, self.known_sums.shape[1])
        for name, tensor in total.tensors.items():
            tensor[ids] = getattr(self, name)
        return total

    def chosen(self, ids: Tensor) -> TargetSums:
        """Return the sums of the targets at ``ids``."""
        return TargetSums(self.kind, **{name: tensor[ids] for name, tensor in self.tensors.items()})

    def __neg__(self) -> TargetSums:
        """Return the sums that take these away."""
        return TargetSums(self.kind, **{name: -tensor for name, tensor in self.tensors.items()})

    @property
    def means(self) -> Tensor:
        """(C,) float64 mean of each target; 0 where none is known."""
        return self.sums / self.known.clamp(min=1)

    @property
    def usable(self) -> Tensor:
        """(C,) bool: the targets that are not the same for all samples for which they are known."""
        spread = self.squares - self.sums.square() / self.known.clamp(min=1)
        return spread > 1e-12 * self.squares

    @property
    def energies(self) -> Tensor:
        """(C,) float64 sum of (y - mean)^2."""
        return (self.squares - self.sums * self.means).clamp(min=0.0)

    @property
    def centred(self) -> Tensor:
        """(C, d) float64 sum of (y - mean) times the features: an unknown target adds nothing."""
        return self.products - self.means.unsqueeze(1) * self.known_sums
