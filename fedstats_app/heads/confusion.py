"""Confusion matrices: evaluation as a value that can be added, on the server or over clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """Counts of (true class, predicted class); a commutative monoid under ``+``.

    Attributes
    ----------
    matrix : Tensor
        (C, C) int64, rows true, columns predicted.
    pooled_examples, pooled_correct : int
        Samples counted without their class, and how many of them were predicted right: in the accuracy, but in no
        class's. A site pools classes of which it evaluated too few samples to name them.
    elsewhere : Tensor
        (C,) int64, by true class the samples taken for another class that is not said; by default none. They count as
        wrong, but against no class's specificity or precision.
    """

    matrix: Tensor
    pooled_examples: int = 0
    pooled_correct: int = 0
    elsewhere: Tensor = field(default=None)  # type: ignore[assignment]  # filled in by __post_init__

    def __post_init__(self) -> None:
        if self.elsewhere is None:
            object.__setattr__(self, "elsewhere", torch.zeros(len(self.matrix), dtype=torch.int64))
        if self.elsewhere.shape != self.matrix.shape[:1] or self.elsewhere.dtype != torch.int64:
            raise ValueError(f"elsewhere must be ({len(self.matrix)},) int64, got {tuple(self.elsewhere.shape)}")
        if not 0 <= self.pooled_correct <= self.pooled_examples:
            raise ValueError(
                "pooled counts must be 0 <= pooled_correct <= pooled_examples, "
                f"got {self.pooled_correct} and {self.pooled_examples}"
            )
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1] or self.matrix.dtype != torch.int64:
            raise ValueError(f"matrix must be (C, C) int64, got {tuple(self.matrix.shape)} {self.matrix.dtype}")

    @classmethod
    def zeros(cls, num_classes: int) -> ConfusionMatrix:
        """Return the identity of ``+``."""
        return cls(torch.zeros(num_classes, num_classes, dtype=torch.int64))

    @classmethod
    def from_predictions(cls, labels: Tensor, predictions: Tensor, num_classes: int) -> ConfusionMatrix:
        """Count (n,) true labels against (n,) predictions, both integers in [0, C).

        Raises
        ------
        ValueError
            If shapes differ, or a value is no integer or out of range.
        """
        if labels.shape != predictions.shape or labels.ndim != 1:
            raise ValueError(
                f"labels and predictions must have the same shape (n,), "
                f"got {tuple(labels.shape)} and {tuple(predictions.shape)}"
            )
        for what, values in (("labels", labels), ("predictions", predictions)):
            if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
                raise ValueError(f"{what} must be integers, got {values.dtype}")
            if values.numel() and (int(values.min()) < 0 or int(values.max()) >= num_classes):
                raise ValueError(
                    f"{what} must lie in [0, {num_classes}), got {int(values.min())} to {int(values.max())}"
                )
        # Cell numbers overflow the narrow integer types that labels may come in.
        true, predicted = labels.to("cpu", torch.int64), predictions.to("cpu", torch.int64)
        cells = torch.bincount(true * num_classes + predicted, minlength=num_classes**2)
        return cls(cells.reshape(num_classes, num_classes))

    def __add__(self, other: ConfusionMatrix) -> ConfusionMatrix:
        """Return the counts of both."""
        if not isinstance(other, ConfusionMatrix):
            return NotImplemented
        if self.matrix.shape != other.matrix.shape:
            raise ValueError(
                f"confusion matrices to add must have the same classes, got {len(self.matrix)} and {len(other.matrix)}"
            )
        return ConfusionMatrix(
            self.matrix + other.matrix,
            self.pooled_examples + other.pooled_examples,
            self.pooled_correct + other.pooled_correct,
            self.elsewhere + other.elsewhere,
        )

    @property
    def class_examples(self) -> Tensor:
        """(C,) int64 samples counted of each class."""
        return self.matrix.sum(dim=1) + self.elsewhere

    @property
    def num_examples(self) -> int:
        """Number of samples counted."""
        return int(self.class_examples.sum()) + self.pooled_examples

    @property
    def num_correct(self) -> int:
        """Number of samples predicted right."""
        return int(self.matrix.trace()) + self.pooled_correct

    @property
    def accuracy(self) -> float:
        """Share of samples predicted right, 0 to 1; NaN without samples."""
        return self.num_correct / self.num_examples if self.num_examples else float("nan")

    @property
    def per_class_accuracy(self) -> Tensor:
        """(C,) float64 sensitivity (recall) of each class; NaN for a class without samples."""
        return self.matrix.diagonal() / self.class_examples.to(torch.float64)

    @property
    def per_class_specificity(self) -> Tensor:
        """(C,) float64 share of the samples of other classes that are not taken for this one; NaN without any."""
        true, predicted, right = self.class_examples, self.matrix.sum(dim=0), self.matrix.diagonal()
        others = (true.sum() - true).to(torch.float64)
        return (others - (predicted - right)) / others

    @property
    def per_class_f1(self) -> Tensor:
        """(C,) float64 harmonic mean of precision and recall; NaN for a class neither true nor predicted anywhere."""
        return 2.0 * self.matrix.diagonal() / (self.matrix.sum(dim=0) + self.class_examples).to(torch.float64)

    def confused_pairs(self) -> list[tuple[int, int, int]]:
        """Return (true class, predicted class, samples) of all wrong predictions, most samples first, then by class."""
        wrong = self.matrix - torch.diag(self.matrix.diagonal())
        cells = wrong.nonzero().tolist()
        return sorted(((true, other, int(wrong[true, other])) for true, other in cells), key=lambda cell: -cell[2])

    @property
    def macro_accuracy(self) -> float:
        """Balanced accuracy: the mean sensitivity of the classes that have samples; NaN without samples."""
        return float(self.per_class_accuracy.nanmean())

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that are true or predicted somewhere; NaN without samples."""
        return float(self.per_class_f1.nanmean())
