"""Which sums of the same data may follow one another, so that no combination of them is of a few parties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

# A class of fewer clients is in no sum.
MIN_HOLDERS = 3


def smallest_cell(sets: Collection[Collection[str]]) -> int:
    """Return the size of the smallest cell into which sets cut their union.

    Whatever is added and subtracted of sums over these sets, it counts all members of a cell alike. Pairs are not
    enough: of A, A and B, A and C, and A, B, C and x, each two differ by many, and all four together give x.
    """
    members = sorted({member for one in sets for member in one})
    kept = [frozenset(one) for one in sets]
    cells = Counter(tuple(member in one for one in kept) for member in members)
    return min(cells.values(), default=0)
