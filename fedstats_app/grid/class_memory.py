"""How many classes the server's memory takes, before any array of them is made. No torch is imported here."""

from __future__ import annotations

import os

# Of HeadScores: a histogram of 1,281 bins of samples of each class, one of the others, and a row of a matrix.
_BYTES_PER_CLASS, _BYTES_PER_CELL = 2 * 8 * 1281, 8


def machine_bytes() -> int | None:
    """Return the memory of this machine; None where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def bytes_for_classes(num_classes: int, feature_dim: int, num_methods: int) -> int:
    """Return about what a run keeps of C classes: sums and heads, each method's scores, and those of one reply.

    Parameters
    ----------
    num_classes, feature_dim : int
        C and d.
    num_methods : int
        Methods of the run.
    """
    scores = num_classes * _BYTES_PER_CLASS + num_classes**2 * _BYTES_PER_CELL
    rows = (3 * num_methods + 2) * 8 * num_classes * feature_dim
    return 2 * num_methods * scores + rows


def classes_that_fit(feature_dim: int, num_methods: int, memory: int) -> int:
    """Return the most classes for which :func:`bytes_for_classes` stays within ``memory`` bytes; at least 1."""
    low, high = 1, 2**30
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_for_classes(middle, feature_dim, num_methods) <= memory:
            low = middle
        else:
            high = middle - 1
    return low
