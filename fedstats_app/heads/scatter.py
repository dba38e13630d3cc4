"""Scatter matrices: parts of a Gram matrix, and the spread of clients' means about their class means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.statistics.accumulation import ROWS_PER_BLOCK, add_in_blocks, mirror_upper


def needed_gram(stats: FeatureStatistics, head: str) -> Tensor:
    """Return the (d, d) Gram matrix.

    Raises
    ------
    ValueError
        If there is none.
    """
    if stats.gram is None:
        raise ValueError(f"the {head} head needs statistics with a Gram matrix, got gram=None")
    return stats.gram


def class_mean_products(stats: FeatureStatistics) -> Tensor:
    """Return sum_c N_c mu_c mu_c^T, (d, d); the Gram matrix without it is the scatter within classes."""
    return _products(stats.class_means, stats.class_counts.to(torch.float64))


def _products(means: Tensor, counts: Tensor) -> Tensor:
    scaled = means * counts.sqrt().unsqueeze(1)
    return scaled.T @ scaled


def mean_product(stats: FeatureStatistics) -> Tensor:
    """Return N mu mu^T, (d, d), mu the mean of all samples."""
    return stats.num_examples * torch.outer(stats.mean, stats.mean)


def within_class_freedom(stats: FeatureStatistics) -> int:
    """Return N - C+, C+ the classes present: the draws behind the scatter within classes."""
    return stats.num_examples - int(stats.present.sum())


def with_equal_classes(stats: FeatureStatistics) -> FeatureStatistics:
    """Return statistics as if all classes present had the same number of samples, at the same means and scatter.

    G + sum_c (n - N_c) mu_c mu_c^T, sums n mu_c and counts n, with n = N / C+ rounded: classes weigh alike in the
    between-class part and have equal priors. The scatter within classes stays that of the samples, since it is not
    known by class.

    Raises
    ------
    ValueError
        Without a Gram matrix.
    """
    present, means = stats.present, stats.class_means
    counts = present * max(round(stats.num_examples / max(int(present.sum()), 1)), 1)
    more = (counts - stats.class_counts).to(torch.float64).unsqueeze(1)
    gram = needed_gram(stats, "balanced") + means.T @ (more * means)
    return FeatureStatistics(counts, means * counts.unsqueeze(1), (gram + gram.T) / 2)


def sample_energy(stats: FeatureStatistics, gram: Tensor) -> float:
    """Return the mean squared norm of a sample, 1 where all are zero: a ridge where the spread is not known."""
    return float(gram.trace()) / max(stats.num_examples, 1) or 1.0


# Columns per tile of the symmetric product: only tiles on and above the diagonal are computed.
COLUMNS_PER_TILE = 128


class ClassTotals(NamedTuple):
    """counts N_c (C,), number of means K_c (C,), sums S_c (C, d), means mu_c (C, d); all float64."""

    counts: Tensor
    num_means: Tensor
    sums: Tensor
    means: Tensor

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the means' covariance, sum_c (K_c - 1)."""
        return int((self.num_means - 1).clamp(min=0).sum())

    @property
    def fedcof_weights(self) -> Tensor:
        """(C,) a_c = (N_c - 1) / max(K_c - 1, 1), the weight of the spread of a class's means in FedCOF."""
        return (self.counts - 1).clamp(min=0) / (self.num_means - 1).clamp(min=1)

    def mean_products(self) -> Tensor:
        """Return sum_c N_c mu_c mu_c^T, (d, d)."""
        return _products(self.means, self.counts)

    @classmethod
    def of(cls, rows: ClassMeanRows) -> ClassTotals:
        """Return the totals of all rows; the mean of an absent class is zero."""
        counts = torch.zeros(rows.num_classes, dtype=torch.float64, device=rows.class_sums.device)
        counts.index_add_(0, rows.class_ids, rows.counts.to(torch.float64))
        num_means = torch.bincount(rows.class_ids, minlength=rows.num_classes).to(torch.float64)
        sums = counts.new_zeros(rows.num_classes, rows.feature_dim)
        add_in_blocks(sums, None, rows.class_sums, rows.class_ids)
        divisor = torch.where(counts > 0, counts, torch.ones_like(counts))
        return cls(counts, num_means, sums, sums / divisor.unsqueeze(1))


class SummedRows(NamedTuple):
    """Sums of rows for FedCOF: their totals, and :func:`row_scatter` by its weights, (d, d) float64."""

    totals: ClassTotals
    scatter: Tensor

    @classmethod
    def of(cls, rows: ClassMeanRows) -> SummedRows:
        """Sum all rows."""
        totals = ClassTotals.of(rows)
        return cls(totals, row_scatter(rows, totals, totals.fedcof_weights))


def row_scatter(rows: ClassMeanRows, totals: ClassTotals, class_weights: Tensor) -> Tensor:
    """Return sum_j w_c n_j (mu_j - mu_c)(mu_j - mu_c)^T, (d, d) float64.

    One symmetric product of the scaled, centred rows, in blocks of rows and tiles of columns. Centring comes first:
    subtracting the class terms afterwards would cancel.
    """
    dim, counts = rows.feature_dim, rows.counts.to(torch.float64).unsqueeze(1)
    scale = (class_weights[rows.class_ids].unsqueeze(1) * counts).sqrt()
    gram = totals.sums.new_zeros(dim, dim)
    tiles = [slice(start, min(start + COLUMNS_PER_TILE, dim)) for start in range(0, dim, COLUMNS_PER_TILE)]
    buffer = gram.new_empty(min(ROWS_PER_BLOCK, len(rows)), dim)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        # In place, in one buffer: new tensors for each step cost a third of the whole product in fresh memory pages.
        scaled = buffer[: len(rows.class_ids[block])].copy_(rows.class_sums[block])
        scaled.div_(counts[block]).sub_(totals.means[rows.class_ids[block]]).mul_(scale[block])
        for tile in tiles:
            gram[tile, tile.start :].addmm_(scaled[:, tile].T, scaled[:, tile.start :])
    return mirror_upper(gram)
