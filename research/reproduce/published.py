"""Published numbers as presets have them: a number, a list of them for a sweep, or the two ends of a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from research.reproduce.catalogue import PresetError


@dataclass(frozen=True)
class Range:
    """Two numbers between which a table's lie, where no more than that is recorded."""

    low: float
    high: float

    def where(self, number: float) -> str:
        """Return "below", "inside" or "above"."""
        return "below" if number < self.low else "above" if number > self.high else "inside"


Published = float | Range


def written(published: Published | None) -> str:
    """Write a published number with all of its digits, as tables show it."""
    if published is None:
        return "not recorded"
    if isinstance(published, Range):
        return f"{published.low:g} to {published.high:g}"
    return f"{published:g}"


def read_published(given: Any, index: int, number: int, owner: str) -> Published:
    """Return the published number at a point of a sweep.

    Parameters
    ----------
    given : object
        As in the file: a number, a list of one for each point, or ``{from = LOW, to = HIGH}`` for all points.
    index, number : int
        Which point, and how many there are.
    owner : str
        For the error.

    Raises
    ------
    PresetError
        If it is none of these.
    """
    if isinstance(given, Mapping):
        if set(given) != {"from", "to"} or not all(map(_is_number, given.values())) or given["from"] > given["to"]:
            raise PresetError(f"{owner}: published: a range must be {{from = LOW, to = HIGH}}, got {dict(given)}")
        return Range(float(given["from"]), float(given["to"]))
    values = given if isinstance(given, list) else [given]
    if len(values) != number or not all(map(_is_number, values)):
        raise PresetError(
            f"{owner}: published: must be {number} number(s), one for each value swept over, or a range, got {given}"
        )
    return float(values[index])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
