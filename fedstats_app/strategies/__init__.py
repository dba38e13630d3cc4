"""Flower Strategy classes: one paper per file, and the Grid under which they see clients as nodes."""

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.strategies.fed3r import Fed3R
from fedstats_app.strategies.fedcgs import FedCGS
from fedstats_app.strategies.fedcof import FedCOF
from fedstats_app.strategies.fedmezo import FedMeZO
from fedstats_app.strategies.fedncm import FedNCM
from fedstats_app.strategies.fine_tuning import FineTuning
from fedstats_app.strategies.one_pass import OnePass

__all__ = [
    "ClientGrid",
    "Fed3R",
    "FedCGS",
    "FedCOF",
    "FedMeZO",
    "FedNCM",
    "FineTuning",
    "OnePass",
    "StatisticsStrategy",
]
