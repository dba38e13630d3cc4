"""A sum without one of its clients, to the rounding of float64, or without the rows of some classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedstats_app.statistics.accumulation import add_to_group_sums
from fedstats_app.statistics.class_mean_rows import ClassMeanRows
from fedstats_app.statistics.client_statistics import ClientStatistics
from fedstats_app.statistics.feature_statistics import FeatureStatistics
from fedstats_app.statistics.statistics_sum import StatisticsSum


def sum_without_client(total: StatisticsSum, client: ClientStatistics) -> StatisticsSum:
    """Return a copy of a sum without one of the clients that were folded into it.

    Its rows leave exactly, where rows are kept. Sums, Gram matrix and scatter are within the rounding of the sum.

    Parameters
    ----------
    total : StatisticsSum
        Unchanged.
    client : ClientStatistics
        As it was folded, with classes numbered as in the sum.

    Raises
    ------
    ValueError
        If it lacks the Gram matrix or the factor that the sum has, or its rows were not folded.
    """
    summed, rows = total.summed(), client.rows
    summed.class_counts.index_add_(0, rows.class_ids, -rows.counts)
    add_to_group_sums(summed.class_sums, -rows.class_sums, rows.class_ids)
    # A class that nobody has left has no rounding error as its sum.
    summed.class_sums[summed.class_counts == 0] = 0.0
    if bool((summed.class_counts < 0).any()):
        raise ValueError("a client to take out must be in the sum, got more samples of a class than the sum has")
    if summed.gram is not None:
        if client.gram is None:
            raise ValueError("a client to take out must have a Gram matrix as the sum has, got none")
        summed.gram.sub_(client.gram)
    scatter, left_out = None, 0.0
    if total.has_scatter:
        if client.scatter is None:
            raise ValueError("a client to take out must have a factor of its scatter as the sum has, got none")
        low_rank, factor = total.low_rank(rows if not total.keeps_rows else None), client.scatter.scaled()
        scatter = low_rank.scatter - factor.T @ factor
        left_out = max(low_rank.left_out - client.scatter.left_out, 0.0)
    kept = _rows_without(total.rows(), rows) if total.keeps_rows else None
    return StatisticsSum.resumed(
        summed,
        kept,
        num_rows=total.num_rows - len(rows),
        num_pairs=total.num_pairs - len(torch.unique(rows.class_ids)),
        scatter=scatter,
        left_out=left_out,
    )


def _rows_without(kept: ClassMeanRows, rows: ClassMeanRows) -> ClassMeanRows:
    """Return rows without the first block of them that is a client's."""
    if not len(rows):
        return kept
    sums = rows.class_sums.to(kept.class_sums.dtype)
    begins = (kept.class_ids == rows.class_ids[0]) & (kept.counts == rows.counts[0])
    for start in begins.nonzero()[:, 0].tolist():
        block = slice(start, start + len(rows))
        if (
            torch.equal(kept.class_ids[block], rows.class_ids)
            and torch.equal(kept.counts[block], rows.counts)
            and torch.equal(kept.class_sums[block], sums)
        ):
            stay = torch.ones(len(kept), dtype=torch.bool)
            stay[block] = False
            return kept.chosen(stay)
    raise ValueError("a client to take out must be in the sum, got rows that were not folded")


def sum_without_classes(total: StatisticsSum, ids: Sequence[int]) -> StatisticsSum:
    """Copy a sum without the rows of some classes; Gram matrix and scatter mix all classes, and stay as they are."""
    summed = total.summed()
    summed.class_counts[ids], summed.class_sums[ids] = 0, 0.0
    rows = None
    if total.keeps_rows:
        kept = total.rows()
        rows = kept.chosen(~torch.isin(kept.class_ids, torch.tensor(ids)))
    scatter = total.low_rank(rows) if total.has_scatter else None
    return StatisticsSum.resumed(
        FeatureStatistics(summed.class_counts, summed.class_sums, summed.gram),
        rows,
        num_rows=total.num_rows if rows is None else len(rows),
        num_pairs=total.num_pairs,
        scatter=None if scatter is None else scatter.scatter,
        left_out=0.0 if scatter is None else scatter.left_out,
    )
