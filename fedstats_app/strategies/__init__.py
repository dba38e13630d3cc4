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

_CLOSED_FORM = "strategies.closed_form"
_HOMES = {
    "ClientGrid": "grid.client_grid",
    "Fed3R": _CLOSED_FORM,
    "FedCGS": _CLOSED_FORM,
    "FedCOF": _CLOSED_FORM,
    "FedMeZO": "strategies.fedmezo",
    "FedNCM": _CLOSED_FORM,
    "FedRoot": _CLOSED_FORM,
    "FineTuning": "strategies.fine_tuning",
    "OnePass": _CLOSED_FORM,
    "StatisticsStrategy": "strategies.base",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a Strategy class on first use, that of a method without a line above too (``closed_form.CLASSES``)."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedstats_app.{_HOMES[name]}"), name)
    made = importlib.import_module(f"{__name__}.closed_form").CLASSES if name[:1].isupper() else {}
    if name not in made:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made[name]
