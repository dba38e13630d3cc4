"""Flower Strategy classes, and the Grid under which they see clients as nodes; they may import what stands below.

Trainings are imported on first use: a closed-form run loads none.
"""

import importlib
from typing import TYPE_CHECKING

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

_HOMES = {"FedMeZO": "fedmezo", "FineTuning": "fine_tuning"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a training on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the classes, for completion in a notebook."""
    return sorted([*globals(), *_HOMES])
