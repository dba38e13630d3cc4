"""The closed-form methods, one record per file; the only table of them. May import options, statistics and heads.

Statistics and heads inside functions only: names and options are read where there is no torch.
"""

from typing import Any

from fedstats_app.methods.method import ConfiguredMethod, Method, Needs, Personal

# One line per method, in the order of tables and plots.
# isort: off
from fedstats_app.methods.fedncm import FEDNCM as FEDNCM
from fedstats_app.methods.fed3r import FED3R as FED3R
from fedstats_app.methods.fedcof import FEDCOF as FEDCOF
from fedstats_app.methods.fedcgs import FEDCGS as FEDCGS
from fedstats_app.methods.fedroot import FEDROOT as FEDROOT
# isort: on

__all__ = ["METHODS", "PERSONAL_METHODS", "ConfiguredMethod", "Method", "Needs", "Personal", "display_name"]

METHODS: dict[str, Method[Any]] = {one.name: one for one in tuple(globals().values()) if isinstance(one, Method)}

# Those that can make a head for one client; models that are trained start from the first of them that was solved.
_PERSONAL = {name: record.personal_with(record.options()) for name, record in METHODS.items()}
_PRIORITIES = {name: personal.priority for name, personal in _PERSONAL.items() if personal}
PERSONAL_METHODS = tuple(sorted(_PRIORITIES, key=lambda name: -_PRIORITIES[name]))


def display_name(method: str) -> str:
    """Return a method's name as its paper spells it; an unknown one comes back unchanged."""
    return METHODS[method].display_name if method in METHODS else method
