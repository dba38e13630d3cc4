"""Scores of heads whose targets are a matrix, as values that add over batches and clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead
from fedstats_app.heads.scores import NUM_MARGIN_BINS, OUT_OF_RANGE, ZERO_BIN, MarginHistograms
from fedstats_app.heads.targets import half_width
from fedstats_app.statistics.accumulation import Addable, check_tensor

# Of a number: samples, sums of y, y^2, errors squared, absolute errors, and samples within the interval.
NUM_MOMENTS = 6
# Scores of labels are log odds, or scaled like them; from -40 to 40 they are told apart in such steps.
STEP = 1.0 / 16.0
_Z = 1.959964


@dataclass(frozen=True, eq=False)
class TargetScores(Addable):
    """Scores of a head on some samples; a commutative monoid under ``+``.

    Attributes
    ----------
    kind : tuple of str
        One, "labels" or "numbers".
    histograms : MarginHistograms
        Of labels: scores of positive and of negative samples.
    moments : Tensor
        (C, NUM_MOMENTS) float64, of numbers.
    num_examples : int
        Samples scored.
    """

    kind: tuple[str, ...]
    histograms: MarginHistograms
    moments: Tensor
    num_examples: int

    def __post_init__(self) -> None:
        check_tensor("moments", self.moments, (None, NUM_MOMENTS), torch.float64)

    @classmethod
    def zeros(cls, kind: str, num_targets: int) -> TargetScores:
        """Return the identity of ``+``."""
        labels, numbers = (num_targets, 0) if kind == "labels" else (0, num_targets)
        moments = torch.zeros(numbers, NUM_MOMENTS, dtype=torch.float64)
        return cls((kind,), MarginHistograms.zeros(labels), moments, 0)

    @classmethod
    def of(cls, kind: str, scores: Tensor, targets: Tensor, head: LinearHead) -> TargetScores:
        """Score (n, C) scores of a head against (n, C) targets, NaN where one is unknown."""
        found = cls.zeros(kind, targets.shape[1])
        if kind == "labels":
            found.histograms.count_targets_(score_bins(scores), targets)
        else:
            known = (~targets.isnan() & head.present).to(torch.float64)
            y = targets.nan_to_num(nan=0.0) * known
            errors = torch.where(known > 0, scores - y, 0.0)
            widths = torch.tensor([half_width(deviation) for deviation in head.report.deviations] or [0.0])
            inside = (errors.abs() <= widths) & (known > 0)
            parts = (known, y, y.square(), errors.square(), errors.abs(), inside.to(torch.float64))
            found.moments.copy_(torch.stack([part.sum(dim=0) for part in parts], dim=1))
        return cls((kind,), found.histograms, found.moments, len(targets))

    @staticmethod
    def num_numbers(num_labels: int) -> int:
        """Return how many numbers they are."""
        return 1 + 2 * num_labels * NUM_MARGIN_BINS

    @property
    def numbers(self) -> Tensor:
        """(n,) int64, all counts of labels in a row."""
        counts = (self.histograms.positives.flatten(), self.histograms.negatives.flatten())
        return torch.cat([torch.tensor([self.num_examples]), *counts])

    @classmethod
    def from_numbers(cls, numbers: Tensor, num_labels: int) -> TargetScores:
        """Read a sum of :attr:`numbers`.

        Raises
        ------
        ValueError
            If they are of no samples.
        """
        positives, negatives = numbers[1:].reshape(2, num_labels, NUM_MARGIN_BINS)
        number = int(numbers[0])
        if bool((numbers < 0).any()) or int((positives + negatives).sum(dim=1).max()) > number:
            raise ValueError(OUT_OF_RANGE)
        return cls(("labels",), MarginHistograms(positives, negatives), cls.zeros("labels", 0).moments, number)

    @property
    def per_label_precision(self) -> Tensor:
        """(C,) float64 average precision: the mean over the positive samples of the precision at their score.

        Samples in one bin are at one score. NaN without positive samples.
        """
        found, total, _ = self._from_the_top
        precision = found / total.clamp(min=1.0)
        gained = self.histograms.positives.flip(1).to(torch.float64)
        return (gained * precision).sum(dim=1) / self.histograms.positives.sum(dim=1)

    @property
    def _from_the_top(self) -> tuple[Tensor, Tensor, Tensor]:
        """(C, bins) float64 positives and samples at least as high as each bin, highest first, and all positives."""
        positives, negatives = (
            counts.flip(1).to(torch.float64).cumsum(1)
            for counts in (self.histograms.positives, self.histograms.negatives)
        )
        return positives, positives + negatives, positives[:, -1:]

    def best_thresholds(self, *, common: bool = False) -> Tensor:
        """Return (C,) float64, the score from which on each label is given for the largest F1, or all of one F1.

        0 without positive samples.
        """
        positives, total, every = self._from_the_top
        if common:
            positives, total, every = (part.sum(dim=0, keepdim=True) for part in (positives, total, every))
        bins = NUM_MARGIN_BINS - 1 - (2.0 * positives / (total + every)).argmax(dim=1)
        best = (bins - ZERO_BIN).to(torch.float64) * STEP
        return torch.where(every[:, 0] > 0, best, 0.0).expand(len(self.histograms.positives))

    def f1(self) -> tuple[Tensor, float]:
        """Return (C,) float64 F1 of each label, NaN without positives, and that of all; a score of 0 gives a label."""
        above = slice(ZERO_BIN, None)
        right = self.histograms.positives[:, above].sum(dim=1).to(torch.float64)
        given = right + self.histograms.negatives[:, above].sum(dim=1)
        held = self.histograms.positives.sum(dim=1)
        f1 = torch.where(held > 0, 2.0 * right / (given + held), torch.nan)
        micro = 2.0 * float(right.sum()) / max(float((given + held).sum()), 1.0)
        return f1, micro

    def measures(self) -> dict[str, Any]:
        """Return the measures for results.json: means, and lists by target with None where nothing is to measure."""
        if self.kind == ("numbers",):
            number, total, squares, errors, absolute, inside = self.moments.unbind(dim=1)
            spread = squares - total.square() / number.clamp(min=1.0)
            r2 = torch.where((number > 1) & (spread > 0), 1.0 - errors / spread, torch.nan)
            per = {"r2": r2, "mean_absolute_error": absolute / number, "within_interval": inside / number}
            return {"kind": "numbers", "per_target_examples": number.long().tolist(), **_with_means(per)}
        precision, auroc, (f1, micro) = self.per_label_precision, self.histograms.per_class_auroc, self.f1()
        held, others = (counts.sum(dim=1) for counts in (self.histograms.positives, self.histograms.negatives))
        bounds = {
            "average_precision": [
                precision_interval(*row) for row in zip(precision.tolist(), held.tolist(), strict=True)
            ],
            "auroc": [auroc_interval(*row) for row in zip(auroc.tolist(), held.tolist(), others.tolist(), strict=True)],
        }
        per = {"average_precision": precision, "auroc": auroc, "f1": f1}
        return {
            "kind": "labels",
            "micro_f1": micro,
            "per_target_examples": held.tolist(),
            **_with_means(per),
            **{f"per_target_{name}_interval": of_targets for name, of_targets in bounds.items()},
        }


def _with_means(per: dict[str, Tensor]) -> dict[str, Any]:
    lists = {f"per_target_{name}": list(map(_number, values.tolist())) for name, values in per.items()}
    return {
        **{
            f"mean_{name}".replace("mean_mean", "mean"): _number(float(values.nanmean()))
            for name, values in per.items()
        },
        **lists,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def score_bins(scores: Tensor) -> Tensor:
    """Return the bins (n, C) int64 of scores of labels: steps of STEP from ZERO_BIN, whose lower end is 0, on."""
    return (scores.to("cpu", torch.float64) / STEP).floor().clamp(-ZERO_BIN, ZERO_BIN).long() + ZERO_BIN


def precision_interval(share: float, positives: int) -> tuple[float, float] | None:
    """Return the 95 % interval of an average precision on the logit scale (Boyd et al. 2013), None for too few."""
    if not 0.0 < share < 1.0 or not positives:
        return None
    middle, half = math.log(share / (1.0 - share)), _Z / math.sqrt(positives * share * (1.0 - share))
    low, high = (1.0 / (1.0 + math.exp(-min(max(middle + side * half, -700.0), 700.0))) for side in (-1, 1))
    return low, high


def auroc_interval(area: float, positives: int, negatives: int) -> tuple[float, float] | None:
    """Return the 95 % interval of an area under the ROC curve (Hanley and McNeil 1982), None for too few samples."""
    if not positives or not negatives:
        return None
    first, second = area / (2.0 - area), 2.0 * area**2 / (1.0 + area)
    variance = area * (1.0 - area) + (positives - 1) * (first - area**2) + (negatives - 1) * (second - area**2)
    half = _Z * math.sqrt(max(variance, 0.0) / (positives * negatives))
    return max(area - half, 0.0), min(area + half, 1.0)
