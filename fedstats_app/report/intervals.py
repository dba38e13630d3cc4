"""Confidence intervals of shares."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a share (Wilson 1927), such as an accuracy.

    It covers the share of all samples like these, drawn independently, with about this probability, also where the
    share is near 0 or 1 or the samples are few, where the normal approximation around ``correct / total`` does not.

    Parameters
    ----------
    correct, total : int
        Samples that count, of all samples; ``0 <= correct <= total``.
    confidence : float
        In (0, 1).

    Returns
    -------
    low, high : float
        Within [0, 1], around ``correct / total``; (0, 1) without samples, which say nothing.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    if not 0 <= correct <= total:
        raise ValueError(f"correct and total must be 0 <= correct <= total, got {correct} and {total}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    share, weight = correct / total, z * z / total
    centre = (share + weight / 2.0) / (1.0 + weight)
    half = z * math.sqrt(share * (1.0 - share) / total + weight / (4.0 * total)) / (1.0 + weight)
    # At the ends the formula gives the share itself, up to rounding.
    return (0.0 if correct == 0 else centre - half), (1.0 if correct == total else centre + half)
