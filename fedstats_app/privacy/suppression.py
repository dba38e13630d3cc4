"""A client's statistics without the classes under its floor, exactly as if their samples were not there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedstats_app.data.differences import sets_of_targets, withheld_targets
from fedstats_app.privacy.node_policy import NodePolicy, distinct, says_much_about_samples
from fedstats_app.statistics import ClientStatistics, StatisticsSpec

logger = logging.getLogger("fedstats_app")

# From positions (m,) of samples to (features (b, d), positions (b,) into those m), in their order; a sample that
# cannot be read is in no block.
Blocks = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]


def rows_of_persons(labels: Tensor, persons: Tensor, means_per_class: int, fewest: int) -> tuple[Tensor, Tensor]:
    """Divide samples into rows by an order of persons, as :func:`fedstats_app.statistics.class_mean_rows.plan_rows`.

    Labels and persons are (n,) int64. Fewer persons than ``fewest`` share a row only where their class has no more.
    It returns the class of each of R rows, (R,) int64, ascending, and the row of each sample, (n,) int64 in [0, R).
    """
    class_ids: list[int] = []
    row_of_sample = torch.empty_like(labels)
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().squeeze(1)
        own, place = torch.unique(persons[members], return_inverse=True)
        number = min(max(len(own) // fewest, 1), means_per_class)
        row_of_sample[members] = len(class_ids) + place * number // len(own)
        class_ids += [label] * number
    return torch.tensor(class_ids, dtype=torch.int64), row_of_sample


@dataclass(frozen=True)
class StatisticsAboveFloor:
    """Statistics that may leave, every row of as many samples as the floor.

    ``suppressed`` are the ids of classes that the client has samples of and that are in none of them, for the node's
    own log; only their number leaves. ``positions`` and ``rows``, (m,) int64, are those of the samples that are in
    them.
    """

    statistics: ClientStatistics
    suppressed: tuple[int, ...]
    positions: Tensor
    rows: Tensor


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
    persons: Tensor | None = None,
    masked: bool = False,
    expanded: bool = False,
    targets: Tensor | None = None,
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
    persons : Tensor, optional
        (n,) int64, equal for the samples of a person: floors count these, and their order, not the seed, says which
        share a mean.
    masked : bool
        Whether they leave under masks only: no server sees the Gram matrix of these samples, however few.
    expanded : bool
        Whether the features are a map's (:attr:`fedstats_app.backbones.backbone.Backbone.expands_features`).
    targets : Tensor, optional
        (n, C) float64, NaN where one is unknown; what :func:`withheld_targets` names is unknown for all.

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
        present = labels[readable]
        whose = None if persons is None else persons[readable]
        kept = readable if floor <= 1 else readable[policy.allowed_classes(present, num_classes, whose)[present]]
        policy.check_gram(spec, _number(kept, persons), feature_dim, expanded=expanded)
        fewest = max(policy.min_samples_per_mean, spec.samples_per_mean)
        rows = None if persons is None else rows_of_persons(labels[kept], persons[kept], spec.means_per_class, fewest)
        accumulator = spec.accumulator(
            labels[kept],
            num_classes,
            feature_dim,
            seed=seed,
            device=device,
            min_samples_per_mean=policy.min_samples_per_mean,
            rows=rows,
            targets=None if targets is None else targets[kept],
        )
        seen = torch.zeros(len(kept), dtype=torch.bool)
        for features, positions in blocks(kept):
            accumulator.update(features, positions)
            seen[positions] = True
        skipped = int((~seen).sum())
        statistics = accumulator.statistics(skipped=skipped)
        if skipped:
            # Samples of classes that were left out stay candidates, so that all classes suppressed are counted.
            readable = readable[~torch.isin(readable, kept[~seen])]
        found = statistics.rows.counts
        if rows is not None and persons is not None:
            found = distinct(rows[1][seen], len(rows[0]), persons[kept[seen]])
        if bool(((found >= floor) | (found == 0)).all()):
            break
    number = _number(kept[seen], persons)
    policy.check_gram(spec, number, feature_dim, expanded=expanded)
    statistics, withheld = policy.protected(spec, statistics, number), list[int]()
    if targets is not None and statistics.targets is not None and floor > 1:
        sets = sets_of_targets(targets[kept[seen]].numpy(), labels=spec.targets == "labels")
        withheld = withheld_targets(sets, floor, None if persons is None else persons[kept[seen]].numpy())
        left = torch.tensor([c for c in range(num_classes) if c not in withheld], dtype=torch.int64)
        statistics.targets = statistics.targets.chosen(left).placed(left, num_classes)
    if not masked:
        _warn_of_gram(policy, spec, statistics, number)
    few = set(labels[readable].tolist()) - set(labels[kept].tolist())
    suppressed = tuple(sorted({*few, *withheld}))
    shared = torch.zeros(int(seen.sum()), dtype=torch.int64)
    if rows is not None:  # those of which no sample could be read are in no statistics
        shared = torch.unique(rows[1][seen], return_inverse=True)[1]
    return StatisticsAboveFloor(statistics, suppressed, kept[seen], shared)


def _number(positions: Tensor, persons: Tensor | None) -> int:
    """Count the persons of some samples; where none are named, the samples."""
    return len(positions if persons is None else torch.unique(persons[positions]))


def _warn_of_gram(policy: NodePolicy, spec: StatisticsSpec, client: ClientStatistics, num_examples: int) -> None:
    """Tell the owner of a node that has a policy, in the node's own log, of what says much about single samples."""
    dim = client.rows.feature_dim
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
