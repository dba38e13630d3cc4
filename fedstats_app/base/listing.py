"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Iterable


def first_few(names: Iterable[str], most: int = 4) -> str:
    """Join the first few of what may be hundreds of names by commas, and say how many more there are."""
    shown = list(names)
    more = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
