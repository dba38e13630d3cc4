"""Means of whole cells: which samples may share a row, so that no difference of answers is of fewer than the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cell each of a client's samples is in; :mod:`fedstats_app.data.contents` draws them.

    Attributes
    ----------
    number : Tensor
        (n,) int64, the cell's number.
    held_out : Tensor
        (n,) bool, whether the cell is for evaluation, and so missing in statistics that leave a hold-out.
    floor : int
        The owner's: the fewest readable samples that anything may be the sum of.
    """

    number: Tensor
    held_out: Tensor
    floor: int

    def units(self, labels: Tensor, readable: Tensor) -> Tensor:
        """Return which unit each sample is in, (n,) int64, -1 for those that may not be used.

        A unit is one cell, or several of one class and part (held out or not) where images that cannot be read have
        left too few in one. It goes by the number of its first cell. Where a part has too few altogether, none of it is
        used, also not in statistics of everything: or their difference to those without it would be of these few.
        Labels are (n,) int64, and ``readable`` (n,) bool.
        """
        unit = torch.full_like(labels, -1)
        parts = torch.stack([labels, self.held_out.to(labels.dtype)], dim=1)
        for part in torch.unique(parts, dim=0):
            members = (parts == part).all(dim=1).nonzero().squeeze(1)
            cells, position = torch.unique(self.number[members], return_inverse=True)
            counts = torch.bincount(position, weights=readable[members].double(), minlength=len(cells))
            groups = merged(counts.long().tolist(), self.floor)
            if groups:
                first = {group: index for index, group in reversed(list(enumerate(groups)))}
                unit[members] = cells[torch.tensor([first[group] for group in groups])][position]
        return unit

    @staticmethod
    def rows(labels: Tensor, units: Tensor, means_per_class: int, min_samples: int) -> tuple[Tensor, Tensor]:
        """Divide samples into rows of whole units, as :func:`fedstats_app.statistics.class_mean_rows.plan_rows` does.

        Labels and units are (n,) int64, of the samples that are used. Fewer samples than ``min_samples`` share a row
        only where their class has no more. It returns the class of each of R rows, (R,) int64, ascending, and the row
        of each sample, (n,) int64 in [0, R).
        """
        class_ids: list[int] = []
        row_of_sample = torch.empty_like(labels)
        for label in torch.unique(labels).tolist():
            members = (labels == label).nonzero().squeeze(1)
            _, position, counts = torch.unique(units[members], return_inverse=True, return_counts=True)
            groups = torch.tensor(merged(counts.tolist(), min_samples) or [0] * len(counts))
            number = int(groups.max()) + 1
            if number > means_per_class:
                groups, number = groups * means_per_class // number, means_per_class
            row_of_sample[members] = len(class_ids) + groups[position]
            class_ids += [label] * number
        return torch.tensor(class_ids, dtype=torch.int64), row_of_sample


def merged(counts: Sequence[int], floor: int) -> list[int]:
    """Return the group of each of some counts in a row, from 0, so that every group sums to the floor at least.

    Empty where all together are fewer.
    """
    groups, group, size = [], 0, 0
    for count in counts:
        groups.append(group)
        size += count
        if size >= max(floor, 1):
            group, size = group + 1, 0
    return [min(one, group - 1) for one in groups] if group else []
