"""Paired comparisons: whether they fall on one side more often than fair coins would (sign and sign-flip tests)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sign_test(wins: int, losses: int) -> float:
    """Probability of at least this many wins among fair, independent comparisons that were won or lost.

    With the samples that one classifier gets right and the other wrong, and the reverse, twice the probability of the
    larger number is McNemar's exact test (McNemar 1947).

    One-sided, 0 to 1; 1 without any comparison. Ties are left out.
    """
    total = wins + losses
    if wins <= losses:
        return 1.0 if wins == 0 else 1.0 - _tail(losses + 1, total)
    return _tail(wins, total)


def flip_test(differences: Tensor) -> float:
    """Probability of at least such a sum, of either sign, if each difference had its sign by a fair coin.

    Fisher's randomisation test (Fisher 1935), exact: the distribution of the sum is computed from its characteristic
    function. Of differences of one sample each it is McNemar's exact test.

    Two-sided, 0 to 1; 1 without any difference.

    Parameters
    ----------
    differences : Tensor
        (n,) integers, independent of each other: what one classifier has right in a cell, less what the other has.
    """
    sizes, numbers = torch.unique(differences.abs()[differences != 0], return_counts=True)
    if sizes.tolist() in ([], [1]):
        sides = int((differences > 0).sum()), int((differences < 0).sum())
        return min(1.0, 2.0 * sign_test(max(sides), min(sides)))
    largest, found = int((sizes * numbers).sum()), abs(int(differences.sum()))
    if found == 0:
        return 1.0
    points = 1 << (2 * largest).bit_length()  # more than the sums there can be
    angles = torch.arange(points, dtype=torch.float64) * (2.0 * math.pi / points)
    transform = torch.ones_like(angles)
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        transform *= torch.cos(size * angles) ** number
    probabilities = torch.fft.ifft(transform).real
    return min(1.0, 2.0 * max(0.0, float(probabilities[found : largest + 1].sum())))


def _tail(least: int, total: int) -> float:
    """Probability of at least ``least`` heads of ``total`` fair coins, where ``least`` is above half of them."""
    if least > total:
        return 0.0
    log_term = math.lgamma(total + 1) - math.lgamma(least + 1) - math.lgamma(total - least + 1) - total * math.log(2)
    term, probability = math.exp(log_term), 0.0
    for heads in range(least, total + 1):
        probability += term
        term *= (total - heads) / (heads + 1)
        if term < 1e-17 * probability:
            break
    return min(probability, 1.0)
