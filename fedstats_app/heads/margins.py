"""How well a head ranks samples by class: histograms of margins, which add over clients, and the AUROC they give.

A sample's margin for class c is its score of c minus its largest other score. Like a softmax, and unlike the score
alone, it does not change if all scores of a sample shift together, so that samples can be compared; unlike a softmax it
needs no temperature. With two classes it is the difference of the scores, in any case the usual ranking.

Scores of different heads differ by orders of magnitude, and nobody knows the range beforehand. So bins are those of a
floating-point number of few digits: 16 to every doubling, from 2^-20 to 2^20 and with either sign. They are the same
everywhere, and fine wherever on the scale a class has its margins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BINS_PER_OCTAVE = 16
SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 20
# Smaller magnitudes share bin ZERO_BIN, larger ones the outermost bins.
ZERO_BIN = BINS_PER_OCTAVE * (LARGEST_EXPONENT - SMALLEST_EXPONENT)
NUM_MARGIN_BINS = 2 * ZERO_BIN + 1
# A float64 number is a sign, 11 bits of exponent, of which that of 1 is 1023, and 52 of mantissa.
_BITS_BEHIND, _MAGNITUDE = 48, 2**15 - 1
_SMALLEST_BITS = (1023 + SMALLEST_EXPONENT) * BINS_PER_OCTAVE


def margin_bins(logits: Tensor) -> Tensor:
    """Return the bin of every sample's margin for every class.

    Parameters
    ----------
    logits : Tensor
        (n, C) scores, -inf for a class that the head does not know: its margin is the lowest.

    Returns
    -------
    Tensor
        (n, C) int16 on the CPU, in [0, NUM_MARGIN_BINS); a larger margin has no smaller bin.

    Raises
    ------
    ValueError
        If a score is NaN or +inf.
    """
    scores = logits.to("cpu", torch.float64)
    all_finite = True
    if scores.numel():
        low, high = (float(one) for one in scores.aminmax())  # both NaN if one score is
        if not high < math.inf:
            raise ValueError(
                "scores must be finite, or -inf for a class that the head does not know, got NaN or infinity"
            )
        all_finite = low > -math.inf
    # The first 16 bits of a float64 number: its sign, its exponent and 4 digits of its mantissa, which are the bin.
    bits = (_margins(scores, all_finite).view(torch.int64) >> _BITS_BEHIND).to(torch.int16)
    step = (bits & _MAGNITUDE).sub_(_SMALLEST_BITS - 1).clamp_(0, ZERO_BIN)
    return step.mul_((bits >> 15) | 1).add_(ZERO_BIN)  # times -1 or 1


def _margins(scores: Tensor, all_finite: bool) -> Tensor:
    """Return (n, C) float64 margins of (n, C) scores; -inf minus -inf is the lowest too."""
    if scores.shape[1] < 2:
        return torch.full_like(scores, torch.inf)
    largest, which = scores.topk(2, dim=1)
    margins = scores - largest[:, :1]
    margins.scatter_(1, which[:, :1], largest[:, :1] - largest[:, 1:])
    return margins if all_finite else margins.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


@dataclass(frozen=True, eq=False)
class MarginHistograms:
    """Per class how many samples of it, and how many of other classes, have a margin in each bin.

    A commutative monoid under ``+``.

    Attributes
    ----------
    positives, negatives : Tensor
        (C, NUM_MARGIN_BINS) int64: samples of class c, and of any other, by the bin of their margin for c.
    """

    positives: Tensor
    negatives: Tensor

    def __post_init__(self) -> None:
        for name in ("positives", "negatives"):
            counts = getattr(self, name)
            shape = (len(self.positives), NUM_MARGIN_BINS)
            if counts.shape != shape or counts.dtype != torch.int64:
                raise ValueError(f"{name} must be {shape} int64, got {tuple(counts.shape)} {counts.dtype}")

    @classmethod
    def zeros(cls, num_classes: int) -> MarginHistograms:
        """Return the identity of ``+``."""
        nothing = torch.zeros(num_classes, NUM_MARGIN_BINS, dtype=torch.int64)
        return cls(nothing, nothing.clone())

    @classmethod
    def from_bins(cls, bins: Tensor, labels: Tensor) -> MarginHistograms:
        """Count what :func:`margin_bins` gave, (n, C), by (n,) integer labels in [0, C).

        Raises
        ------
        ValueError
            If shapes disagree or a label is out of range.
        """
        if bins.ndim != 2 or labels.shape != bins.shape[:1]:
            raise ValueError(f"bins must be (n, C) and labels (n,), got {tuple(bins.shape)} and {tuple(labels.shape)}")
        num_classes, labels = bins.shape[1], labels.to("cpu", torch.int64)
        if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
            raise ValueError(f"labels must lie in [0, {num_classes}), got {int(labels.min())} to {int(labels.max())}")
        cells = bins.to(torch.int64) + NUM_MARGIN_BINS * torch.arange(num_classes)
        own = cells.gather(1, labels.unsqueeze(1)).squeeze(1)

        def counted(which: Tensor) -> Tensor:
            counts = torch.bincount(which.flatten(), minlength=num_classes * NUM_MARGIN_BINS)
            return counts.reshape(num_classes, NUM_MARGIN_BINS)

        positives = counted(own)
        return cls(positives, counted(cells) - positives)

    def __add__(self, other: MarginHistograms) -> MarginHistograms:
        """Return the counts of both."""
        if not isinstance(other, MarginHistograms):
            return NotImplemented
        if self.positives.shape != other.positives.shape:
            raise ValueError(
                f"histograms to add must have the same classes, got {len(self.positives)} and {len(other.positives)}"
            )
        return MarginHistograms(self.positives + other.positives, self.negatives + other.negatives)

    @property
    def per_class_auroc(self) -> Tensor:
        """(C,) float64 area under the ROC curve of each class against all others; NaN without samples of either.

        The chance that a sample of the class has a larger margin for it than one of another class. Pairs in one bin
        count half; see :attr:`per_class_auroc_error`.
        """
        positives, negatives = self.positives.to(torch.float64), self.negatives.to(torch.float64)
        below = negatives.cumsum(dim=1) - negatives / 2.0
        # Pairs are counted, and divided once: as shares, areas could be above 1 by rounding.
        return ((positives * below).sum(dim=1) / self._pairs).clamp(max=1.0)

    @property
    def per_class_auroc_error(self) -> Tensor:
        """(C,) float64 most that the bins can have moved each area: half the share of pairs in one bin."""
        return (self.positives.to(torch.float64) * self.negatives).sum(dim=1) / self._pairs / 2.0

    @property
    def macro_auroc(self) -> float:
        """Mean area over the classes that have one; NaN without any. With two classes both have the same."""
        return float(self.per_class_auroc.nanmean())

    @property
    def macro_auroc_error(self) -> float:
        """Most that the bins can have moved the mean area."""
        return float(self.per_class_auroc_error.nanmean())

    @property
    def _pairs(self) -> Tensor:
        """(C,) float64 number of pairs of a sample of each class and one of another."""
        return self.positives.sum(dim=1).to(torch.float64) * self.negatives.sum(dim=1)
