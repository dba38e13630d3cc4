"""Flower Strategy classes, and the Grid under which they see clients as nodes; they may import what stands below."""

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.strategies.closed_form import CLASSES, Fed3R, FedCGS, FedCOF, FedNCM, FedRoot, OnePass
from fedstats_app.strategies.fedmezo import FedMeZO
from fedstats_app.strategies.fine_tuning import FineTuning

__all__ = [
    "ClientGrid",
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

globals().update(CLASSES)  # also of methods that are not written above
