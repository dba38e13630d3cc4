"""FedNCM as a Strategy; see :mod:`fedstats_app.methods.fedncm`."""

from __future__ import annotations

from typing import Any

from fedstats_app.methods import FEDNCM
from fedstats_app.strategies.base import StatisticsStrategy


class FedNCM(StatisticsStrategy):
    """One upload of class sums and counts, M d numbers in all; see :func:`fedstats_app.heads.solve_ncm`."""

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__(num_classes, [FEDNCM.configured()], **options)
