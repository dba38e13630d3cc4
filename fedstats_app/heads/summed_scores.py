"""Scores of a head on samples of many clients, of which no client's part is seen: whole numbers that add up.

A temperature needs losses. So that a sum of them says little of any sample, a sample's loss counts for at most
MOST_LOSS, and a client rounds its sum to LOSS_STEP: a sample moves it by a few steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedstats_app.heads.calibration import PER_DECADE, TEMPERATURE_STEP, TEMPERATURES, Calibration
from fedstats_app.heads.scores import NUM_MARGIN_BINS, OUT_OF_RANGE, ClientScores, ConfusionMatrix, HeadScores
from fedstats_app.statistics.accumulation import check_tensor

# In nats.
MOST_LOSS, LOSS_STEP = 8.0, 2.0
SUMMED_TEMPERATURES = TEMPERATURES[::TEMPERATURE_STEP]


@dataclass(frozen=True, eq=False)
class SummedScores:
    """Scores of a head that has one class a sample.

    Attributes
    ----------
    right, wrong : Tensor
        (C,) int64, samples of each class.
    others : Tensor
        (4,) int64: samples counted without their class, and how many of these are right; persons, and the sum of their
        shares right, as of :class:`ConfusionMatrix`.
    of_labels : Tensor
        (NUM_MARGIN_BINS,) int64, margins for the right classes.
    losses : Tensor
        (t,) int64, in steps of LOSS_STEP, at SUMMED_TEMPERATURES.
    """

    right: Tensor
    wrong: Tensor
    others: Tensor
    of_labels: Tensor
    losses: Tensor

    def __post_init__(self) -> None:
        for part, size in zip(self._parts, _sizes(len(self.right)), strict=True):
            check_tensor("scores", part, (size,), torch.int64)

    @classmethod
    def of(cls, scores: ClientScores, *, by_class: bool) -> Self:
        """Return a client's scores, with losses at SUMMED_TEMPERATURES; or those of all classes together."""
        counts, nothing = scores.confusion, torch.zeros(len(scores.confusion.matrix), dtype=torch.int64)
        right, all_counted = counts.matrix.diagonal(), (counts.num_examples, counts.num_correct)
        counted = (counts.pooled_examples, counts.pooled_correct) if by_class else all_counted
        return cls(
            right if by_class else nothing,
            counts.class_examples - right if by_class else nothing,
            torch.tensor([*counted, counts.persons, counts.person_shares]),
            torch.zeros(NUM_MARGIN_BINS, dtype=torch.int64).index_add_(0, *scores.of_labels.unbind(dim=1)),
            (scores.losses.clamp(max=MOST_LOSS).sum(dim=0) / LOSS_STEP).round().long(),
        )

    @staticmethod
    def num_numbers(num_classes: int) -> int:
        """Return how many numbers they are."""
        return sum(_sizes(num_classes))

    @property
    def numbers(self) -> Tensor:
        """(n,) int64, all of them in a row."""
        return torch.cat(self._parts)

    @classmethod
    def from_numbers(cls, numbers: Tensor, num_classes: int) -> Self:
        """Read a sum of :attr:`numbers`.

        Raises
        ------
        ValueError
            If they are of no samples: some client sent other ones, or was asked something else.
        """
        found = cls(*torch.split(numbers, _sizes(num_classes)))
        examples, right, persons, shares = found.others.tolist()
        named, total = int((found.right + found.wrong).sum()), int(found.of_labels.sum())
        fits = 0 <= right <= examples and 0 <= shares <= persons * ConfusionMatrix.SHARE
        if not (fits and bool((numbers >= 0).all()) and total <= named + examples and persons <= named + examples):
            raise ValueError(OUT_OF_RANGE)
        return found

    @property
    def scores(self) -> HeadScores:
        """Counts and margins; no wrong sample has the class that it was taken for."""
        examples, right, persons, shares = self.others.tolist()
        confusion = ConfusionMatrix(torch.diag(self.right), examples, right, self.wrong, persons, shares)
        return replace(HeadScores.zeros(len(self.right)), confusion=confusion, of_labels=self.of_labels)

    @property
    def calibration(self) -> Calibration | None:
        """The temperature of the least loss, of several the largest; None where there is none to choose.

        Between neighbours a parabola has it.
        """
        number = self.scores.confusion.num_examples
        if not number or int(self.losses.min()) == int(self.losses.max()):
            return None
        best = len(self.losses) - 1 - int(self.losses.flip(0).argmin())
        step = 0.0
        if 0 < best < len(self.losses) - 1:
            below, least, above = self.losses[best - 1 : best + 2].tolist()
            step = (below - above) / (2.0 * max(below - 2 * least + above, 1))
        temperature = SUMMED_TEMPERATURES[best] * 10.0 ** (step * TEMPERATURE_STEP / PER_DECADE)
        return Calibration(float(f"{temperature:.6g}"), None, None, None, None, number, "samples of the sites")

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.right, self.wrong, self.others, self.of_labels, self.losses


def _sizes(num_classes: int) -> list[int]:
    return [num_classes, num_classes, 4, NUM_MARGIN_BINS, len(SUMMED_TEMPERATURES)]
