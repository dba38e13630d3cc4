"""Several strategies' methods from one pass: clients are asked once for the union of what the methods need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstats_app.strategies.base import StatisticsStrategy


class OnePass(StatisticsStrategy):
    """Serves several strategies from one upload.

    ``heads`` holds one head per method, and ``wire_bytes(method)`` what each alone would have cost.

    Parameters
    ----------
    num_classes : int
        C.
    strategies : sequence of StatisticsStrategy
        Of different methods and the same classes. Only what they ask for and how they solve is used; how clients are
        asked is this object's own business.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        Without strategies, with two of one method, or with other classes.
    """

    def __init__(self, num_classes: int, strategies: Sequence[StatisticsStrategy], **options: Any) -> None:
        if any(strategy.num_classes != num_classes for strategy in strategies):
            raise ValueError(f"strategies must all have {num_classes} classes")
        methods = [method for strategy in strategies for method in strategy.methods().values()]
        super().__init__(num_classes, methods, **options)
