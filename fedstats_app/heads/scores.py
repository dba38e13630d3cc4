"""Scores of a head on samples, as values that add over batches and clients: confusion matrix, AUROC, calibration.

Histograms of margins measure how well a head ranks samples by class. A sample's margin for class c is its score of c
minus its largest other score. Like a softmax, and unlike the score alone, it does not change if all scores of a sample
shift together, so that samples can be compared; unlike a softmax it needs no temperature. With two classes it is the
difference of the scores, the usual ranking.

Scores of different heads differ by orders of magnitude, and their range is not known beforehand. So bins are those of a
floating-point number of few digits: 16 to every doubling, from 2^-20 to 2^20 and with either sign. They are the same
everywhere, and fine wherever on the scale a class has its margins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedstats_app.heads.calibration import TEMPERATURES, CalibrationSums, all_known
from fedstats_app.statistics.accumulation import Addable, check_labels, check_tensor


@dataclass(frozen=True, eq=False)
class ConfusionMatrix(Addable):
    """Counts of (true class, predicted class); a commutative monoid under ``+``.

    Attributes
    ----------
    matrix : Tensor
        (C, C) int64, rows true, columns predicted.
    pooled_examples, pooled_correct : int
        Samples counted without their class, and how many of them were predicted right: in the accuracy, but in no
        class's. A site pools classes of which it evaluated too few samples to name them.
    elsewhere : Tensor
        (C,) int64, by true class the samples that were predicted as another, unnamed class; by default none. They count
        as wrong, but against no class's specificity or precision.
    persons, person_shares : int
        Persons behind the samples, 0 where none are named, and the sum over them of the share of samples right, in
        units of 1 / SHARE.
    """

    matrix: Tensor
    pooled_examples: int = 0
    pooled_correct: int = 0
    elsewhere: Tensor = field(default=None)  # type: ignore[assignment]  # filled in by __post_init__
    persons: int = 0
    person_shares: int = 0
    # Whole numbers add up to the same in any order.
    SHARE: ClassVar[int] = 1_000_000

    def __post_init__(self) -> None:
        if self.elsewhere is None:
            object.__setattr__(self, "elsewhere", torch.zeros(len(self.matrix), dtype=torch.int64))
        check_tensor("matrix", self.matrix, (len(self.matrix), len(self.matrix)), torch.int64)
        check_tensor("elsewhere", self.elsewhere, (len(self.matrix),), torch.int64)

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
            If a value is no integer or out of range.
        """
        return cls.zeros(num_classes).count_(labels, predictions)

    def count_(self, labels: Tensor, predictions: Tensor) -> ConfusionMatrix:
        """Count a batch into this matrix; arguments and errors as of :meth:`from_predictions`."""
        num_classes = len(self.matrix)
        check_labels(labels, num_classes)
        check_labels(predictions, num_classes)
        # Cell numbers overflow the narrow integer types that labels may come in.
        true, predicted = labels.to("cpu", torch.int64), predictions.to("cpu", torch.int64)
        cells = true * num_classes + predicted
        self.matrix.view(-1).index_add_(0, cells, torch.ones_like(cells))
        return self

    @classmethod
    def of_persons(cls, right: Tensor, persons: Tensor, num_classes: int) -> ConfusionMatrix:
        """Count persons alone, from (n,) bool of samples and (n,) int64, equal for those of one person."""
        unit, counts = torch.unique(persons, return_inverse=True, return_counts=True)[1:]
        shares = torch.bincount(unit, right.to(torch.float64), len(counts)) / counts
        zero = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        return cls(zero, persons=len(counts), person_shares=int((shares * cls.SHARE).round().sum()))

    @property
    def person_accuracy(self) -> float | None:
        """Mean over persons of the share of their samples predicted right, 0 to 1; None where none are named."""
        return self.person_shares / (self.SHARE * self.persons) if self.persons else None

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
    def _hides_predictions(self) -> bool:
        """True if of no wrong sample of a class it is said which class it was taken for."""
        return bool(self.elsewhere.any()) and int(self.matrix.trace()) == int(self.matrix.sum())

    @property
    def per_class_specificity(self) -> Tensor:
        """(C,) float64 share of the samples of other classes that are not taken for this one; NaN if unknown."""
        if self._hides_predictions:
            return torch.full((len(self.matrix),), torch.nan, dtype=torch.float64)
        true, predicted, right = self.class_examples, self.matrix.sum(dim=0), self.matrix.diagonal()
        others = (true.sum() - true).to(torch.float64)
        return (others - (predicted - right)) / others

    @property
    def per_class_f1(self) -> Tensor:
        """(C,) float64 harmonic mean of precision and recall; NaN if unknown, or neither true nor predicted."""
        if self._hides_predictions:
            return torch.full((len(self.matrix),), torch.nan, dtype=torch.float64)
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


BINS_PER_OCTAVE = 16
SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 20
# Smaller magnitudes share bin ZERO_BIN, larger ones the outermost bins.
ZERO_BIN = BINS_PER_OCTAVE * (LARGEST_EXPONENT - SMALLEST_EXPONENT)
NUM_MARGIN_BINS = 2 * ZERO_BIN + 1
OUT_OF_RANGE = "a sum of scores is out of its range: some client was asked, or answered, something else"
# A float64 number is a sign, 11 bits of exponent, of which that of 1 is 1023, and 52 of mantissa.
_BITS_BEHIND, _MAGNITUDE = 48, 2**15 - 1
_SMALLEST_BITS = (1023 + SMALLEST_EXPONENT) * BINS_PER_OCTAVE
# Samples whose margins are counted at a time.
_ROWS_AT_ONCE = 1024


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
    # The first 16 bits of a float64 number: its sign, its exponent and 4 digits of its mantissa, which are the bin.
    bits = (_margins(scores, all_known(scores)).view(torch.int64) >> _BITS_BEHIND).to(torch.int16)
    step = (bits & _MAGNITUDE).sub_(_SMALLEST_BITS - 1).clamp_(0, ZERO_BIN)
    return step.mul_((bits >> 15) | 1).add_(ZERO_BIN)  # times -1 or 1


def label_margins(scores: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) margins of (n, C) scores for the (n,) given labels; below 0 where another class has a larger score.

    Raises
    ------
    ValueError
        If a score is NaN or +inf.
    """
    scores = scores.to("cpu", torch.float64)
    return _margins(scores, all_known(scores)).gather(1, labels.long().unsqueeze(1)).squeeze(1)


def _margins(scores: Tensor, finite: bool) -> Tensor:
    """Return (n, C) float64 margins of (n, C) scores; -inf minus -inf is the lowest too."""
    if scores.shape[1] < 2:
        return torch.full_like(scores, torch.inf)
    largest, indices = scores.topk(2, dim=1)
    margins = scores - largest[:, :1]
    margins.scatter_(1, indices[:, :1], largest[:, :1] - largest[:, 1:])
    return margins if finite else margins.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def filled_bins(bins: Tensor, labels: Tensor) -> Tensor:
    """Count margins, and keep of the histograms only the bins that hold a sample.

    A few samples of a thousand classes fill few of their million bins; whole histograms of each client and method would
    cost more than the scores.

    Parameters
    ----------
    bins : Tensor
        (n, C), of :func:`margin_bins`.
    labels : Tensor
        (n,) integers in [0, C).

    Returns
    -------
    Tensor
        (t, 4) int64: class, bin, samples of the class, samples of others; in ascending order of class and bin.
    """
    return MarginHistograms.zeros(bins.shape[1]).count_(bins, labels).filled


@dataclass(frozen=True, eq=False)
class MarginHistograms(Addable):
    """Histograms by class of the margins of its samples, and of those of other classes.

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
            check_tensor(name, getattr(self, name), (len(self.positives), NUM_MARGIN_BINS), torch.int64)

    @classmethod
    def zeros(cls, num_classes: int) -> MarginHistograms:
        """Return the identity of ``+``."""
        nothing = torch.zeros(num_classes, NUM_MARGIN_BINS, dtype=torch.int64)
        return cls(nothing, nothing.clone())

    def count_(self, bins: Tensor, labels: Tensor) -> MarginHistograms:
        """Count (n, C) bins of :func:`margin_bins` by (n,) integer labels in [0, C) into these tensors."""
        first = NUM_MARGIN_BINS * torch.arange(bins.shape[1])
        parts = torch.split(bins, _ROWS_AT_ONCE), torch.split(labels.to("cpu", torch.int64), _ROWS_AT_ONCE)
        for rows, own_classes in zip(*parts, strict=True):
            cells = rows + first  # int64, of a few rows at a time
            own = cells.gather(1, own_classes.unsqueeze(1)).squeeze(1)
            ones = torch.ones(cells.numel(), dtype=torch.int64)
            self.negatives.view(-1).index_add_(0, cells.flatten(), ones).index_add_(0, own, -ones[: len(own)])
            self.positives.view(-1).index_add_(0, own, ones[: len(own)])
        return self

    def count_targets_(self, bins: Tensor, targets: Tensor) -> MarginHistograms:
        """Count (n, C) bins of scores by (n, C) targets, above 0 or not, NaN where one is unknown."""
        cells = bins + NUM_MARGIN_BINS * torch.arange(bins.shape[1])
        for counts, chosen in ((self.positives, targets > 0), (self.negatives, targets <= 0)):
            own = cells[chosen]
            counts.view(-1).index_add_(0, own, torch.ones_like(own))
        return self

    def add_(self, filled: Tensor) -> MarginHistograms:
        """Add (t, 4) bins of :func:`filled_bins` to these tensors, in time that grows with t."""
        index = filled[:, 0], filled[:, 1]
        self.positives.index_put_(index, filled[:, 2], accumulate=True)
        self.negatives.index_put_(index, filled[:, 3], accumulate=True)
        return self

    @property
    def filled(self) -> Tensor:
        """(t, 4) int64 bins that hold a sample, as of :func:`filled_bins`."""
        bins = (self.positives + self.negatives).nonzero()
        index = bins[:, 0], bins[:, 1]
        return torch.cat([bins, torch.stack([self.positives[index], self.negatives[index]], dim=1)], dim=1)

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
    def macro_auroc_error(self) -> float:
        """Most that the bins can have moved the mean area."""
        return float(self.per_class_auroc_error.nanmean())

    @property
    def _pairs(self) -> Tensor:
        """(C,) float64 number of pairs of a sample of each class and one of another."""
        return self.positives.sum(dim=1).to(torch.float64) * self.negatives.sum(dim=1)


@dataclass(eq=False)
class HeadScores(Addable):
    """Scores of a head on some samples; a commutative monoid under ``+``, and an accumulator.

    Attributes
    ----------
    confusion : ConfusionMatrix
        True and predicted classes: accuracy, F1, specificity.
    even, odd : CalibrationSums
        Sums for the choice of a temperature, of every other sample each, so that one half judges the other's.
    margins : MarginHistograms
        Ranking by class (AUROC) of the samples that the confusion matrix counts by class.
    of_labels : Tensor
        (NUM_MARGIN_BINS,) int64, margins for their right classes of the samples that ``margins`` does not hold.
    """

    confusion: ConfusionMatrix
    even: CalibrationSums
    odd: CalibrationSums
    margins: MarginHistograms
    of_labels: Tensor = field(default_factory=lambda: torch.zeros(NUM_MARGIN_BINS, dtype=torch.int64))

    @classmethod
    def zeros(cls, num_classes: int, temperatures: Sequence[float] = TEMPERATURES) -> HeadScores:
        """Return the identity of ``+``."""
        calibration = CalibrationSums.zeros(temperatures)
        return cls(ConfusionMatrix.zeros(num_classes), calibration, calibration, MarginHistograms.zeros(num_classes))

    @property
    def calibration(self) -> CalibrationSums:
        """Sums of all samples."""
        return self.even + self.odd

    def count(self, logits: Tensor, labels: Tensor, predictions: Tensor) -> HeadScores:
        """Add (n, C) logits, -inf for classes that the head does not know, (n,) labels and (n,) predictions.

        Predictions need not be the largest logit's: a run may let absent classes be predicted.
        """
        self.confusion.count_(labels, predictions)
        self.even += CalibrationSums.from_logits(logits[::2], labels[::2], self.even.temperatures)
        self.odd += CalibrationSums.from_logits(logits[1::2], labels[1::2], self.odd.temperatures)
        self.margins.count_(margin_bins(logits), labels)
        return self

    def count_client(self, client: ClientScores) -> None:
        """Add a client's counts and margins, which have nothing for a calibration."""
        self.confusion += client.confusion
        self.margins.add_(client.margins)
        self.of_labels.index_add_(0, *client.of_labels.unbind(dim=1))

    @property
    def per_class_auroc(self) -> Tensor:
        """(C,) float64 areas of the margins; with two classes within the bounds of the confusion matrix.

        Sites widen bins of few samples, also across a margin of 0. But the confusion matrix tells the sign of each
        sample's margin: two samples of different classes are ranked correctly if both are classified correctly, and
        wrongly if both are classified wrongly.
        """
        areas, right = self.margins.per_class_auroc, self.confusion.per_class_accuracy
        same_samples = torch.equal(self.margins.positives.sum(dim=1), self.confusion.class_examples)
        if len(areas) != 2 or not same_samples:
            return areas
        return areas.clamp(right.prod(), 1.0 - (1.0 - right).prod())

    @property
    def macro_auroc(self) -> float:
        """Mean area over the classes that have one; NaN without any. With two classes both have the same."""
        return float(self.per_class_auroc.nanmean())


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Scores that a client sends for a head.

    Attributes
    ----------
    confusion : ConfusionMatrix
        As in :class:`HeadScores`.
    margins : Tensor
        (t, 4) int64 bins of its histograms that hold a sample (:func:`filled_bins`); none if they are withheld.
    of_labels : Tensor
        (t, 2) int64 bins and samples of the histogram of margins for the right classes, where ``margins`` is withheld.
    losses : Tensor
        (n, t) float64 of each sample or person that has a say in a temperature; not sent.
    temperature : int or None
        Index of the best of TEMPERATURES for its samples, or None if it is undecided.
    """

    confusion: ConfusionMatrix
    margins: Tensor
    temperature: int | None
    of_labels: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.int64))
    losses: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))

    @property
    def num_examples(self) -> int:
        """Samples that the head was scored on."""
        return self.confusion.num_examples
