"""(class, count, mean) rows: what FedNCM and FedCOF clients send. Added by stacking."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import (
    ArrayLike,
    Summable,
    add_in_blocks,
    as_tensor,
    check_features,
    check_tensor,
)
from fedstats_app.statistics.feature_statistics import FeatureStatistics


class ClassMeanRows(Summable):
    """Rows of (class, count, mean), one or several per client and class; a monoid under ``+`` (stacking).

    A row is kept as its class *sum* and the mean derived from it, so that adding the rows of a class gives the same
    bits as summing its features. Immutable by convention.

    Parameters
    ----------
    class_ids : Tensor
        (M,) int64 in [0, num_classes).
    counts : Tensor
        (M,) positive; int64, or float64 if noise was added to the counts (Goswami et al. 2025, eq. 23).
    means : Tensor, optional
        (M, d) floating point. Give this or ``class_sums``.
    num_classes : int
        Number of classes C.
    class_sums : Tensor, optional
        (M, d) float32 or float64: count times mean.

    Raises
    ------
    ValueError
        If shapes or dtypes disagree with the above, a class id is out of range, a count is not positive, or both or
        neither of ``means`` and ``class_sums`` are given.

    Examples
    --------
    >>> features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 1, 1])
    >>> sum(ClassMeanRows.from_features(features[k:], labels[k:], num_classes=2) for k in (0, 2))
    <ClassMeanRows of 4 samples: 3 rows, 2 classes, 2 features>
    """

    def __init__(
        self,
        class_ids: Tensor,
        counts: Tensor,
        means: Tensor | None = None,
        num_classes: int | None = None,
        *,
        class_sums: Tensor | None = None,
    ) -> None:
        if means is not None:
            class_sums = means.to(torch.float64) * counts.to(torch.float64).unsqueeze(-1)
        if num_classes is None or class_sums is None:
            raise ValueError("rows take num_classes and either means or class_sums")
        check_tensor("class_sums", class_sums, (None, None), torch.float32, torch.float64)
        check_tensor("class_ids", class_ids, (len(class_sums),), torch.int64)
        check_tensor("counts", counts, (len(class_sums),), torch.int64, torch.float64)
        if class_ids.numel() and not 0 <= int(class_ids.min()) <= int(class_ids.max()) < num_classes:
            raise ValueError(
                f"class_ids must lie in [0, {num_classes}), got {int(class_ids.min())} to {int(class_ids.max())}"
            )
        if counts.numel() and not counts.min().item() > 0:  # of NaN the least is NaN
            raise ValueError(f"counts must be positive, got {float(counts.min())}")
        self.class_ids, self.counts, self.class_sums, self.num_classes = class_ids, counts, class_sums, num_classes

    @classmethod
    def from_features(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        num_classes: int,
        *,
        means_per_class: int = 1,
        samples_per_mean: int = 2,
        generator: torch.Generator | None = None,
    ) -> ClassMeanRows:
        """Return a site's rows: what FedCOF wants of it (Goswami et al. 2025).

        Parameters
        ----------
        features : Tensor or ndarray
            (n, d) floating point.
        labels : Tensor or ndarray
            (n,) integers in [0, num_classes).
        num_classes : int
            C.
        means_per_class, samples_per_mean, generator
            As of :func:`plan_rows`.

        Raises
        ------
        ValueError
            If shapes disagree, a label is out of range, or a feature is not finite.
        """
        features, labels = as_tensor(features), as_tensor(labels)
        check_features(features, labels, num_classes)
        class_ids, row = plan_rows(
            labels, means_per_class=means_per_class, min_samples_per_mean=samples_per_mean, generator=generator
        )
        sums = torch.zeros(len(class_ids), features.shape[1], dtype=torch.float64)
        add_in_blocks(sums, None, features, row)
        return cls(class_ids, torch.bincount(row, minlength=len(class_ids)), num_classes=num_classes, class_sums=sums)

    @classmethod
    def zeros(cls, num_classes: int, feature_dim: int, *, dtype: torch.dtype = torch.float64) -> ClassMeanRows:
        """Return the identity of ``+``: no rows."""
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(empty, empty, num_classes=num_classes, class_sums=torch.zeros(0, feature_dim, dtype=dtype))

    @classmethod
    def concatenate(cls, parts: Iterable[ClassMeanRows]) -> ClassMeanRows:
        """Stack the rows of several clients, in the order given.

        Raises
        ------
        ValueError
            If there is no part, or parts differ in classes or feature dimension.
        """
        parts = list(parts)
        shapes = {(part.num_classes, part.feature_dim) for part in parts}
        if len(shapes) != 1:
            raise ValueError(f"rows to add must have the same (classes, feature dimension), got {sorted(shapes)}")
        # Counts stay integers unless a part carries noise.
        noisy = any(part.counts.dtype == torch.float64 for part in parts)
        counts = [part.counts.to(torch.float64) if noisy else part.counts for part in parts]
        return cls(
            torch.cat([part.class_ids for part in parts]),
            torch.cat(counts),
            num_classes=parts[0].num_classes,
            class_sums=torch.cat([part.class_sums for part in parts]),
        )

    def __repr__(self) -> str:
        kind = f"{len(self)} rows, {self.num_classes} classes, {self.feature_dim} features"
        return f"<ClassMeanRows of {self.num_examples} samples: {kind}>"

    def __add__(self, other: ClassMeanRows) -> ClassMeanRows:
        """Return the rows of both, those of ``self`` first."""
        if not isinstance(other, ClassMeanRows):
            return NotImplemented
        return ClassMeanRows.concatenate([self, other])

    def __len__(self) -> int:
        """Return the number of rows M."""
        return len(self.class_ids)

    @property
    def feature_dim(self) -> int:
        """Feature dimension d."""
        return int(self.class_sums.shape[1])

    @property
    def means(self) -> Tensor:
        """(M, d) float64 means, derived from the sums on every access."""
        return self.class_sums.to(torch.float64) / self.counts.to(torch.float64).unsqueeze(1)

    @property
    def scaled_sums(self) -> Tensor:
        """(M, d) float64 sums over the roots of the counts: X^T X is what the means have of the Gram matrix."""
        return self.class_sums.to(torch.float64) / self.counts.to(torch.float64).sqrt().unsqueeze(1)

    def products(self) -> Tensor:
        """Return (d, d) float64, sum_j n_j mu_j mu_j^T: what the means have of the Gram matrix."""
        scaled = self.scaled_sums
        return scaled.T @ scaled

    @property
    def num_examples(self) -> int | float:
        """Number of samples N; a float where counts carry noise."""
        return self.counts.sum().item()

    def with_sums(self, class_sums: Tensor) -> ClassMeanRows:
        """Return rows of the same classes and counts with other sums."""
        return ClassMeanRows(self.class_ids, self.counts, num_classes=self.num_classes, class_sums=class_sums)

    def chosen(self, stay: Tensor) -> ClassMeanRows:
        """Return the rows for which ``stay``, (m,) bool, is true, in their order."""
        return ClassMeanRows(
            self.class_ids[stay], self.counts[stay], num_classes=self.num_classes, class_sums=self.class_sums[stay]
        )

    def class_counts(self) -> Tensor:
        """Return (C,) int64 samples of each class.

        Raises
        ------
        ValueError
            If counts carry noise: class counts are integers.
        """
        if self.counts.dtype != torch.int64:
            raise ValueError("rows with noisy (float64) counts cannot be summed to integer class counts")
        counts = torch.zeros(self.num_classes, dtype=torch.int64, device=self.counts.device)
        return counts.index_add_(0, self.class_ids, self.counts)

    def summed(self, gram: Tensor | None = None) -> FeatureStatistics:
        """Return class counts and class sums, adding the rows of each class.

        Parameters
        ----------
        gram : Tensor, optional
            (d, d) float64 Gram matrix of the same samples, to go with them.

        Raises
        ------
        ValueError
            If counts carry noise: class counts are integers.
        """
        counts = self.class_counts()
        sums = torch.zeros(self.num_classes, self.feature_dim, dtype=torch.float64, device=self.class_sums.device)
        # Not whole: in float64 they are twice their size, and a server has the rows of thousands of clients.
        add_in_blocks(sums, None, self.class_sums, self.class_ids)
        return FeatureStatistics(counts, sums, gram)


def plan_rows(
    labels: Tensor, *, means_per_class: int = 1, min_samples_per_mean: int = 2, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Decide which samples share a mean, before any feature is known.

    Parameters
    ----------
    labels : Tensor
        (n,) integers.
    means_per_class : int
        Disjoint means asked for per class; a class with n samples gets
        ``max(1, min(means_per_class, n // min_samples_per_mean))``, of equal size but for the last, which takes the
        rest (Goswami et al. 2025, section 4.4).
    min_samples_per_mean : int
        Fewer samples than this share a mean only where their class has no more.
    generator : torch.Generator, optional
        Draws the split; by default one with seed 0.

    Returns
    -------
    class_ids : Tensor
        (R,) int64, class of each row, ascending.
    row_of_sample : Tensor
        (n,) int64 in [0, R).
    """
    if means_per_class < 1:
        raise ValueError(f"means_per_class must be at least 1, got {means_per_class}")
    labels = labels.to(device="cpu", dtype=torch.int64)
    present, class_position, class_sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    if means_per_class == 1:
        return present, class_position
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    rows_per_class = (class_sizes // min_samples_per_mean).clamp(min=1, max=means_per_class)
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[torch.argsort(class_position[shuffled], stable=True)]
    position = class_position[by_class]
    rank = torch.arange(len(labels)) - (class_sizes.cumsum(0) - class_sizes)[position]
    subset = torch.minimum(rank // (class_sizes // rows_per_class)[position], rows_per_class[position] - 1)
    row_of_sample = torch.empty_like(by_class)
    row_of_sample[by_class] = (rows_per_class.cumsum(0) - rows_per_class)[position] + subset
    return present.repeat_interleave(rows_per_class), row_of_sample
