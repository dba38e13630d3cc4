"""Paired comparisons: whether they fall on one side more often than a fair coin would (the sign test)."""

from __future__ import annotations

import math


def sign_test(wins: int, losses: int) -> float:
    """Probability of at least this many wins among fair, independent comparisons that were won or lost.

    With the samples that one classifier gets right and the other wrong, and the reverse, twice the probability of the
    larger number is McNemar's exact test (McNemar 1947).

    Parameters
    ----------
    wins, losses : int
        At least 0; ties are left out.

    Returns
    -------
    float
        One-sided, 0 to 1; 1 without any comparison.
    """
    total = wins + losses
    if wins <= losses:
        return 1.0 if wins == 0 else 1.0 - _tail(losses + 1, total)
    return _tail(wins, total)


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
