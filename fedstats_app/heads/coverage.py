"""Sets of classes that hold the right one with a promised chance: split conformal prediction.

Margins for the right class (:mod:`fedstats_app.heads.scores`) are counted on n samples that the head was not made
from. If a new sample comes from where these do, its margin is below the k-th smallest of theirs with a chance of at
most k / (n + 1) (Vovk et al. 2005; Lei et al. 2018), so that all classes with a margin from there on hold its class. A
margin needs no temperature. A class with enough samples has a bound of its own, and then the promise holds for it alone
(Vovk 2012); the others share one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.scores import NUM_MARGIN_BINS, margin_bins
from fedstats_app.statistics.accumulation import check_tensor

# Samples of a class below its own bound, at least: from fewer the bound is mostly chance.
_LEAST_BELOW = 5


@dataclass(frozen=True, eq=False)
class LabelMargins:
    """Histograms of the margins of samples for their right classes.

    Attributes
    ----------
    pooled : Tensor
        (NUM_MARGIN_BINS,) int64, of all samples.
    by_class : Tensor
        (C, NUM_MARGIN_BINS) int64, of the samples of each class; none where sites do not tell them apart.
    samples : str
        Whose samples they are, in words.
    """

    pooled: Tensor
    by_class: Tensor
    samples: str

    def __post_init__(self) -> None:
        check_tensor("pooled", self.pooled, (NUM_MARGIN_BINS,), torch.int64)
        check_tensor("by_class", self.by_class, (len(self.by_class), NUM_MARGIN_BINS), torch.int64)

    @property
    def largest_coverage(self) -> float:
        """Largest share that a set smaller than all classes can promise: few samples, and hidden ones, lower it."""
        return 1.0 - (int(self.pooled[0]) + 1 - 1e-6) / (int(self.pooled.sum()) + 1)

    def lowest_bins(self, coverage: float) -> Tensor:
        """Return (C,) int64, from which bin of a margin on a class belongs to a set.

        Raises
        ------
        ValueError
            If coverage is not above 0, or so large that every set would be of all classes.
        """
        if not 0.0 < coverage <= self.largest_coverage:
            raise ValueError(
                f"coverage must be above 0 and at most {self.largest_coverage:.4g}, which {self.samples} can promise, "
                f"got {coverage:g}"
            )
        counts = torch.cat([self.pooled.unsqueeze(0), self.by_class])
        below = ((counts.sum(dim=1) + 1) * (1.0 - coverage) + 1e-9).long()  # k of each histogram
        lowest = (counts.cumsum(dim=1) < below.unsqueeze(1)).sum(dim=1)
        return torch.where(below[1:] >= _LEAST_BELOW, lowest[1:], lowest[0])

    def sets(self, logits: Tensor, coverage: float) -> Tensor:
        """Return (n, C) bool, the classes of each sample's set by (n, C) scores, -inf for an absent class.

        The class with the largest score is always in it.
        """
        chosen = (margin_bins(logits) >= self.lowest_bins(coverage)) & torch.isfinite(logits)
        return chosen.scatter_(1, logits.argmax(dim=1, keepdim=True), True)

    def to_json(self) -> str:
        """Return the bins that hold a sample as text; those of a class only where a bound of its own can be made."""
        large = self.by_class.sum(dim=1) >= 2 * _LEAST_BELOW
        classes = {str(index): _filled(self.by_class[index]) for index in large.nonzero().flatten().tolist()}
        return json.dumps({"samples": self.samples, "pooled": _filled(self.pooled), "classes": classes})

    @classmethod
    def from_json(cls, text: str, num_classes: int) -> LabelMargins:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            If it is something else.
        """
        by_class = torch.zeros(num_classes, NUM_MARGIN_BINS, dtype=torch.int64)
        try:
            found = json.loads(text)
            for index, filled in found["classes"].items():
                by_class[int(index)] = _whole(filled)
            return cls(_whole(found["pooled"]), by_class, str(found["samples"]))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
            raise ValueError(f"label-margins: must be bins and their numbers of samples, got {text!r:.60}") from error


def _filled(counts: Tensor) -> list[list[int]]:
    bins = counts.nonzero().flatten()
    return torch.stack([bins, counts[bins]], dim=1).tolist()


def _whole(filled: list[list[int]]) -> Tensor:
    bins, counts = torch.tensor(filled, dtype=torch.int64).reshape(-1, 2).unbind(dim=1)
    if len(bins) and (int(bins.min()) < 0 or int(counts.min()) < 0):
        raise ValueError("negative")
    return torch.zeros(NUM_MARGIN_BINS, dtype=torch.int64).index_add_(0, bins, counts)
