"""Several methods from one pass: clients are asked once for the union of what the methods need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstats_app.heads import LinearHead
from fedstats_app.statistics import StatisticsSpec, StatisticsSum
from fedstats_app.strategies.base import StatisticsStrategy


class OnePass(StatisticsStrategy):
    """Serves several strategies from one upload.

    ``heads`` holds one head per method, and ``wire_bytes(method)`` what each alone would have cost.

    Parameters
    ----------
    num_classes : int
        C.
    strategies : sequence of StatisticsStrategy
        Of different names and the same classes. Only what they ask for and how they solve is used; how clients are
        asked is this object's own business.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        Without strategies, with two of one name, or with other classes.
    """

    name = "one-pass"

    def __init__(self, num_classes: int, strategies: Sequence[StatisticsStrategy], **options: Any) -> None:
        self._strategies = {strategy.name: strategy for strategy in strategies}
        if not strategies or len(self._strategies) != len(strategies):
            raise ValueError(
                f"strategies must be at least one, of different names, got {[strategy.name for strategy in strategies]}"
            )
        if any(strategy.num_classes != num_classes for strategy in strategies):
            raise ValueError(f"strategies must all have {num_classes} classes")
        super().__init__(num_classes, **options)

    def methods(self) -> Mapping[str, StatisticsStrategy]:
        """Return the strategies by name."""
        return self._strategies

    @property
    def specification(self) -> StatisticsSpec:
        """That of the first strategy."""
        return next(iter(self._strategies.values())).specification

    def solve(self, statistics: StatisticsSum) -> LinearHead:
        """Return the head of the first strategy."""
        return next(iter(self._strategies.values())).solve(statistics)
