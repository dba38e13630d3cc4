"""Flower Strategy classes, and the Grid under which they see clients as nodes; they may import what stands below.

Trainings are imported on first use: a closed-form run loads none.
"""

from typing import TYPE_CHECKING

from fedstats_app.base.lazy import lazy
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.strategies.closed_form import ClosedForm, Fed3R, FedCGS, FedCOF, FedNCM, FedRoot, OnePass

if TYPE_CHECKING:
    from fedstats_app.strategies.fedmezo import FedMeZO
    from fedstats_app.strategies.fine_tuning import FineTuning

__all__ = [
    "ClientGrid",
    "ClosedForm",
    "Fed3R",
    "FedCGS",
    "FedCOF",
    "FedMeZO",
    "FedNCM",
    "FedRoot",
    "FineTuning",
    "OnePass",
    "StatisticsStrategy",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, {"FedMeZO": "fedmezo", "FineTuning": "fine_tuning"})
