"""The app's release with noise of any kind: in floats, for measurements and attacks, where the app sums whole steps.

The release, its division and its heads are the app's (:mod:`fedstats_app.statistics.noisy_words`,
:mod:`fedstats_app.heads.noisy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead
from fedstats_app.heads.noisy import NoisyStatistics
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.statistics.noisy_words import Division, deviations, unit

Noise = Callable[[Tensor, float], Tensor]


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return (C, d) sums of features (n, d) by their labels (n,) int64."""
    return features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)


def second_moments(features: Tensor) -> Tensor:
    """Return the triangle of the sum of z z^T, off the diagonal times sqrt(2): as long as the whole matrix.

    Returns
    -------
    Tensor
        (d (d + 1) / 2,).
    """
    return pack_upper(features.T @ features) * _root_of_times(features.shape[1], features)


def matrix_of(moments: Tensor, dim: int) -> Tensor:
    """Return the symmetric (d, d) matrix of :func:`second_moments`."""
    return unpack_upper(moments / _root_of_times(dim, moments), dim)


def _root_of_times(dim: int, like: Tensor) -> Tensor:
    """Return 1 for entries on the diagonal, sqrt(2) for others, which are in the matrix twice."""
    return pack_upper(like.new_full((dim, dim), math.sqrt(2.0)).fill_diagonal_(1.0))


def gaussian(generator: torch.Generator) -> Noise:
    """Make a function that adds normal noise: for measurements, since floats tell more than integers.

    Mironov 2012, "On significance of the least significant bits for differential privacy".
    """

    def noisy(values: Tensor, deviation: float) -> Tensor:
        drawn = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        return values + deviation * drawn

    return noisy


def release(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    num_samples: int,
    mu: float,
    noise: Noise,
    division: Division | None = None,
) -> NoisyStatistics:
    """Release what heads need, mu-GDP for one sample more or less.

    Parameters
    ----------
    features : Tensor
        (n, d) float64.
    labels : Tensor
        (n,) int64.
    num_classes : int
        C; not taken from the labels, which nothing may depend on.
    num_samples : int
        N as declared: neighbours have the same.
    mu : float
        See :func:`fedstats_app.secure.account.mu_of`.
    noise : callable
        Adds noise of a standard deviation.
    division : Division, optional
        By default as measured.

    Raises
    ------
    ValueError
        If features are not finite, or N is below 1.
    """
    if num_samples < 1 or not bool(features.isfinite().all()):
        raise ValueError(f"features must be finite and samples be declared, got {num_samples}")
    division = division or Division()
    dim = features.shape[1]
    of_mean, of_sums, of_moments = division.parts(mu, num_classes, dim)
    mean = noise(unit(features).sum(dim=0), 1 / of_mean) / num_samples
    turned = deviations(features, mean)
    sums = noise(class_sums(turned, labels, num_classes), 1 / of_sums)
    moments = matrix_of(noise(second_moments(turned), 1 / of_moments), dim)
    return NoisyStatistics(mean, sums, moments, math.sqrt(2 * dim) / of_moments, num_samples)


def plain_sums(features: Tensor, labels: Tensor, num_classes: int, *, mu: float, noise: Noise) -> LinearHead:
    """Return the head of class sums of unit features with noise: the least that differential privacy can do."""
    sums = noise(class_sums(unit(features), labels, num_classes), 1 / mu)
    return LinearHead.of_rows(sums, torch.ones(num_classes, dtype=torch.bool))
