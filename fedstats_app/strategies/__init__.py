"""Flower Strategy classes, and the Grid under which they see clients as nodes; they may import what stands below.

Each is imported on first use: a closed-form run loads no training.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstats_app.grid.client_grid import ClientGrid as ClientGrid
    from fedstats_app.strategies.base import StatisticsStrategy as StatisticsStrategy
    from fedstats_app.strategies.closed_form import Fed3R as Fed3R
    from fedstats_app.strategies.closed_form import FedCGS as FedCGS
    from fedstats_app.strategies.closed_form import FedCOF as FedCOF
    from fedstats_app.strategies.closed_form import FedNCM as FedNCM
    from fedstats_app.strategies.closed_form import FedRoot as FedRoot
    from fedstats_app.strategies.closed_form import OnePass as OnePass
    from fedstats_app.strategies.fedmezo import FedMeZO as FedMeZO
    from fedstats_app.strategies.fine_tuning import FineTuning as FineTuning

_HOMES = {
    "ClientGrid": "grid.client_grid",
    "FedMeZO": "strategies.fedmezo",
    "FineTuning": "strategies.fine_tuning",
    "StatisticsStrategy": "strategies.base",
}
__all__ = [*_HOMES, "Fed3R", "FedCGS", "FedCOF", "FedNCM", "FedRoot", "OnePass"]


def __getattr__(name: str) -> object:
    """Import a Strategy class on first use, that of a method without a line above too (``closed_form.CLASSES``)."""
    home = f"fedstats_app.{_HOMES.get(name, 'strategies.closed_form')}"
    found = getattr(importlib.import_module(home), name, None) if name[:1].isupper() else None
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
