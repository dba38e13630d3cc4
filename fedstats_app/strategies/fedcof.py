"""FedCOF as a Strategy; see :mod:`fedstats_app.methods.fedcof`."""

from __future__ import annotations

from typing import Any, Literal

from fedstats_app.methods.fedcof import FEDCOF, FedCOFOptions
from fedstats_app.strategies.base import StatisticsStrategy


class FedCOF(StatisticsStrategy):
    """One upload of class sums and counts, M d numbers in all; see :func:`fedstats_app.heads.solve_fedcof`.

    The server keeps every row, so that clients may arrive over several rounds with the result of one.

    Parameters
    ----------
    num_classes : int
        C.
    shrinkage, between_class
        As :func:`fedstats_app.heads.solve_fedcof`, with the paper's values as defaults.
    means_per_class : int
        Disjoint means that a client sends per class.
    **options
        As :class:`StatisticsStrategy`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        shrinkage: float | Literal["auto"] = 1.0,
        between_class: bool = False,
        means_per_class: int = 1,
        **options: Any,
    ) -> None:
        own = FedCOFOptions(shrinkage, between_class, means_per_class)
        super().__init__(num_classes, [FEDCOF.configured(own)], **options)
