"""Sums and heads without some classes: what can be taken out of them, and what can only be masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedstats_app.heads import LinearHead
from fedstats_app.statistics import FeatureStatistics, StatisticsSum


def sum_without_classes(total: StatisticsSum, ids: Sequence[int]) -> StatisticsSum:
    """Return a copy without the rows of some classes; Gram matrix and scatter have all in one, and stay as they are."""
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


def masked_head(head: LinearHead, classes: Sequence[int]) -> LinearHead:
    """Return a head that never predicts some classes."""
    present, weight, bias = head.present.clone(), head.weight.clone(), head.bias.clone()
    present[list(classes)], weight[list(classes)], bias[list(classes)] = False, 0.0, -torch.inf
    return replace(head, present=present, weight=weight, bias=bias)
