"""Paired comparisons of two classifiers on the same samples: sign test and McNemar's test."""

from __future__ import annotations

import math

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


def paired_p_value(differences: Tensor) -> float:
    """Probability of at least such a sum, of either sign, if each difference had its sign by a fair coin.

    By the normal distribution, with continuity correction: of differences of one sample each this is McNemar's test
    (Edwards 1948).

    Parameters
    ----------
    differences : Tensor
        (n,) integers, independent of each other: samples of a cell that one classifier has right, less those that the
        other has.
    """
    total, spread = abs(int(differences.sum())), math.sqrt(int(differences.long().square().sum()))
    return math.erfc((total - 1) / (spread * math.sqrt(2.0))) if total else 1.0


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
