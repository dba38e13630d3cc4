"""Class counts, class sums and the Gram matrix: the sufficient statistics of every closed-form head but FedCOF's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import (
    Addable,
    ArrayLike,
    accumulation_device,
    add_in_blocks,
    as_tensor,
    check_features,
    check_tensor,
    mirror_upper,
)
from fedstats_app.statistics.target_sums import TargetSums


@dataclass(frozen=True, eq=False)
class FeatureStatistics(Addable):
    """Summed statistics of labelled features; a commutative monoid under ``+``.

    ``from_features(A) + from_features(B)`` equals ``from_features`` of both together, to float64 rounding, and
    ``zeros`` is the identity.

    Attributes
    ----------
    class_counts : Tensor
        (C,) int64, number of samples of each class.
    class_sums : Tensor
        (C, d) float64, sum of the features of each class.
    gram : Tensor or None
        (d, d) float64, sum of the outer products of all features (features are rows: F^T F), or None where not
        collected.
    targets : TargetSums or None
        Of samples with several labels or numbers; then the class counts and sums, of whatever class, are of all.

    Raises
    ------
    ValueError
        If shapes or dtypes disagree with the above.

    Examples
    --------
    >>> features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 1, 1])
    >>> sites = [FeatureStatistics.from_features(features[k:], labels[k:], num_classes=2) for k in (0, 2)]
    >>> sum(sites)
    <FeatureStatistics of 4 samples: 2 classes, 2 features, with Gram matrix>
    """

    class_counts: Tensor
    class_sums: Tensor
    gram: Tensor | None = None
    targets: TargetSums | None = None

    def __repr__(self) -> str:
        kind = f"{self.num_classes} classes, {self.feature_dim} features, with{'out' * (self.gram is None)} Gram matrix"
        return f"<FeatureStatistics of {self.num_examples} samples: {kind}>"

    def __post_init__(self) -> None:
        num_classes, dim = len(self.class_counts), self.class_sums.shape[-1]
        check_tensor("class_counts", self.class_counts, (None,), torch.int64)
        check_tensor("class_sums", self.class_sums, (num_classes, None), torch.float64)
        if self.gram is not None:
            check_tensor("gram", self.gram, (dim, dim), torch.float64)

    @classmethod
    def zeros(
        cls, num_classes: int, feature_dim: int, *, gram: bool = True, device: torch.device | str = "cpu"
    ) -> FeatureStatistics:
        """Return the identity of ``+``: the statistics of no samples."""
        return cls(
            torch.zeros(num_classes, dtype=torch.int64, device=device),
            torch.zeros(num_classes, feature_dim, dtype=torch.float64, device=device),
            torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=device) if gram else None,
        )

    @classmethod
    def from_features(
        cls, features: ArrayLike, labels: ArrayLike, num_classes: int, *, gram: bool = True
    ) -> FeatureStatistics:
        """Return the statistics of labelled features.

        Parameters
        ----------
        features : Tensor or ndarray
            (n, d) floating point, on any device; n may be 0. Sums are formed in float64, in blocks.
        labels : Tensor or ndarray
            (n,) integers in [0, num_classes).
        num_classes : int
            Number of classes C, the same on all clients.
        gram : bool
            Whether to form the (d, d) Gram matrix.

        Raises
        ------
        ValueError
            If shapes disagree, a label is out of range, or a feature is not finite.
        """
        features, labels = as_tensor(features), as_tensor(labels)
        check_features(features, labels, num_classes)
        device = accumulation_device(features.device)
        total = cls.zeros(num_classes, features.shape[1], gram=gram, device=device)
        add_in_blocks(total.class_sums, total.gram, features, labels)
        counts = torch.bincount(labels.to(device=device, dtype=torch.int64), minlength=num_classes)
        return cls(counts, total.class_sums, None if total.gram is None else mirror_upper(total.gram))

    def clone(self) -> FeatureStatistics:
        """Return a copy in memory of its own."""
        gram = None if self.gram is None else self.gram.clone()
        return FeatureStatistics(self.class_counts.clone(), self.class_sums.clone(), gram, self.targets)

    @property
    def num_classes(self) -> int:
        """Number of classes C, absent ones included."""
        return len(self.class_counts)

    @property
    def feature_dim(self) -> int:
        """Feature dimension d."""
        return int(self.class_sums.shape[1])

    @property
    def num_examples(self) -> int:
        """Number of samples N."""
        return int(self.class_counts.sum())

    @property
    def present(self) -> Tensor:
        """(C,) bool: classes with at least one sample."""
        return self.class_counts > 0

    @property
    def class_means(self) -> Tensor:
        """(C, d) float64 class means; the row of an absent class is zero."""
        return self.class_sums / self.class_counts.clamp(min=1).to(torch.float64).unsqueeze(1)

    @property
    def mean(self) -> Tensor:
        """(d,) float64 mean of all features; zero without samples."""
        return self.class_sums.sum(dim=0) / max(self.num_examples, 1)
