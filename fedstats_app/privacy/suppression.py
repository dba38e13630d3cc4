"""A client's statistics without the classes under its floor, exactly as if their samples were not there.

Samples of a node's own data are in cells, of which rows are made whole: so no difference of answers is of fewer samples
than the floor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstats_app.privacy.node_policy import NodePolicy, says_much_about_samples
from fedstats_app.statistics import ClientStatistics, StatisticsSpec

logger = logging.getLogger("fedstats_app")

# From positions (m,) of samples to (features (b, d), positions (b,) into those m), in their order; a sample that
# cannot be read is in no block.
Blocks = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]


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
    return [min(size, group - 1) for size in groups] if group else []


@dataclass(frozen=True)
class StatisticsAboveFloor:
    """Statistics that may leave, every row of as many samples as the floor.

    ``suppressed`` are the ids of classes that the client has samples of and that are in none of them, for the node's
    own log; only their number leaves.
    """

    statistics: ClientStatistics
    suppressed: tuple[int, ...]


def statistics_above_floor(
    policy: NodePolicy,
    spec: StatisticsSpec,
    labels: Tensor,
    blocks: Blocks,
    *,
    num_classes: int,
    feature_dim: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    cells: Cells | None = None,
    masked: bool = False,
    expanded: bool = False,
) -> StatisticsAboveFloor:
    """Form the statistics of the samples whose class is not under the policy's floor.

    Samples of other classes are not even read. Where unreadable samples take a class or a mean under the floor, which
    is known only once all were tried, everything is formed again without them: a Gram matrix cannot give back a sample
    to the last bit. That is rare, and what comes out is what the remaining samples alone would have given.

    Parameters
    ----------
    policy, spec
        Of the node, and what is asked for.
    labels : Tensor
        (n,) int64 in [0, num_classes).
    blocks : callable
        Gives the features of some of these samples, by their positions (m,) in ``labels``.
    num_classes, feature_dim : int
        C and the backbone's d.
    seed : int
        Draws which samples share a mean.
    device : torch.device or str
        Where features arrive.
    cells : Cells, optional
        Of the samples: then whole cells share a mean, whatever the seed.
    masked : bool
        Whether they leave under masks only: no server sees the Gram matrix of these samples, however few.
    expanded : bool
        Whether the features are a map's (:attr:`fedstats_app.backbones.backbone.Backbone.expands_features`).

    Raises
    ------
    RefusedByPolicy
        If the policy does not allow the specification, or a Gram matrix of so few samples.
    """
    policy.check_specification(spec)
    if masked:
        policy = replace(policy, min_gram_samples=0)
    floor = policy.min_class_count
    readable = torch.arange(len(labels))
    while True:
        units = _units(cells, labels, readable)
        usable = readable if cells is None else readable[units[readable] >= 0]
        present = labels[usable]
        kept = usable if floor <= 1 else usable[policy.allowed_classes(present, num_classes)[present]]
        policy.check_gram(spec, len(kept), feature_dim, expanded=expanded)
        fewest = max(policy.min_samples_per_mean, spec.samples_per_mean)
        accumulator = spec.accumulator(
            labels[kept],
            num_classes,
            feature_dim,
            seed=seed,
            device=device,
            min_samples_per_mean=policy.min_samples_per_mean,
            rows=None if cells is None else cells.rows(labels[kept], units[kept], spec.means_per_class, fewest),
        )
        seen = torch.zeros(len(kept), dtype=torch.bool)
        for features, positions in blocks(kept):
            accumulator.update(features, positions)
            seen[positions] = True
        skipped = int((~seen).sum())
        statistics = accumulator.statistics(skipped=skipped)
        same_units = True
        if skipped:
            # Samples of classes that were left out stay candidates, so that all classes suppressed are counted.
            readable = readable[~torch.isin(readable, kept[~seen])]
            found = kept[seen]
            same_units = torch.equal(units[found], _units(cells, labels, readable)[found])
        if same_units and bool((statistics.rows.counts >= floor).all()):
            break
    policy.check_gram(spec, int(seen.sum()), feature_dim, expanded=expanded)
    statistics = policy.protected(spec, statistics)
    if not masked:
        _warn_of_gram(policy, spec, statistics)
    return StatisticsAboveFloor(statistics, tuple(sorted(set(labels[readable].tolist()) - set(labels[kept].tolist()))))


def _units(cells: Cells | None, labels: Tensor, readable: Tensor) -> Tensor:
    """Return the unit of each sample, (n,) int64; without cells all are of one."""
    if cells is None:
        return torch.zeros_like(labels)
    can_be_read = torch.zeros(len(labels), dtype=torch.bool)
    can_be_read[readable] = True
    return cells.units(labels, can_be_read)


def _warn_of_gram(policy: NodePolicy, spec: StatisticsSpec, client: ClientStatistics) -> None:
    """Tell the owner of a node that has a policy, in the node's own log, of what says much about single samples."""
    num_examples, dim = int(client.rows.num_examples), client.rows.feature_dim
    if not (spec.gram or spec.sends_scatter) or not policy.min_class_count:
        return
    if not policy.shares_gram(num_examples, dim):
        logger.info("too few samples for a Gram matrix: %d directions leave", len(client.scatter or ()))
    elif says_much_about_samples(num_examples, dim):
        logger.warning(
            "the %s that leaves has %d samples in %d dimensions, fewer than 2 d, and so reveals much about "
            "single ones; min-gram-samples prevents this",
            "Gram matrix" if spec.gram else "factor of the scatter",
            num_examples,
            dim,
        )
