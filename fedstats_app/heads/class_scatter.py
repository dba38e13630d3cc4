"""Parts of a Gram matrix: what lies within classes, between them, and in the mean of all samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.heads.regularisation import Spread
from fedstats_app.statistics import FeatureStatistics


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
    scaled = stats.class_means * stats.class_counts.to(torch.float64).sqrt().unsqueeze(1)
    return scaled.T @ scaled


def mean_product(stats: FeatureStatistics) -> Tensor:
    """Return N mu mu^T, (d, d), mu the mean of all samples."""
    return stats.num_examples * torch.outer(stats.mean, stats.mean)


def within_class_freedom(stats: FeatureStatistics) -> int:
    """Return N - C+, C+ the classes present: the draws behind the scatter within classes."""
    return stats.num_examples - int(stats.present.sum())


def within_class_spread(stats: FeatureStatistics, gram: Tensor) -> Spread | None:
    """Return the spread of samples about their class means; None where there is none."""
    freedom = within_class_freedom(stats)
    counts = stats.class_counts.to(torch.float64)
    return Spread.of(gram - class_mean_products(stats), stats.class_means, counts, float(freedom), freedom)


def sample_energy(stats: FeatureStatistics, gram: Tensor) -> float:
    """Return the mean squared norm of a sample, 1 where all are zero: a ridge where the spread is not known."""
    return float(gram.trace()) / max(stats.num_examples, 1) or 1.0
