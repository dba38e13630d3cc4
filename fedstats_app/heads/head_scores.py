"""All that an evaluation says of one head, as a value that adds over batches and clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedstats_app.heads.calibration import TEMPERATURES, CalibrationSums
from fedstats_app.heads.confusion import ConfusionMatrix
from fedstats_app.heads.margins import MarginHistograms, margin_bins


@dataclass(frozen=True, eq=False)
class HeadScores:
    """What a head makes of some samples; a commutative monoid under ``+``.

    Attributes
    ----------
    confusion : ConfusionMatrix
        True and predicted classes: accuracy, F1, specificity.
    calibration : CalibrationSums
        From which a temperature is chosen.
    margins : MarginHistograms
        How samples are ranked by class: AUROC. Of the samples that the confusion matrix counts by class.
    """

    confusion: ConfusionMatrix
    calibration: CalibrationSums
    margins: MarginHistograms

    @classmethod
    def zeros(cls, num_classes: int, temperatures: Sequence[float] = TEMPERATURES) -> HeadScores:
        """Return the identity of ``+``."""
        calibration = CalibrationSums.zeros(temperatures)
        return cls(ConfusionMatrix.zeros(num_classes), calibration, MarginHistograms.zeros(num_classes))

    @classmethod
    def from_logits(
        cls, logits: Tensor, labels: Tensor, predictions: Tensor, temperatures: Sequence[float] = TEMPERATURES
    ) -> HeadScores:
        """Score (n, C) logits, -inf for classes that the head does not know, and (n,) predictions.

        Predictions need not be the largest logit's: a run may let absent classes be predicted.
        """
        return cls(
            ConfusionMatrix.from_predictions(labels, predictions, logits.shape[1]),
            CalibrationSums.from_logits(logits, labels, temperatures),
            MarginHistograms.from_bins(margin_bins(logits), labels),
        )

    def __add__(self, other: HeadScores) -> HeadScores:
        """Return the scores on the samples of both."""
        if not isinstance(other, HeadScores):
            return NotImplemented
        return HeadScores(
            self.confusion + other.confusion, self.calibration + other.calibration, self.margins + other.margins
        )
