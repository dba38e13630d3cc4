"""Variants: a method with other values of some options than the run's, by a name that says so.

The variant ``fedcof@shrinkage=0.1`` is FedCOF with ``fedcof-shrinkage = 0.1``; further options follow, each after an
``@``. Variants of one method stand beside each other in one run, solved from the same statistics.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from fedstats_app.settings.option import ConfigError, Options, from_text

# Such names are those of files, and a training's name goes on after a hyphen: a value has one in an exponent only.
_CHANGE = r"@[a-z][a-z0-9-]*=(?:[\w.()%]|(?<=[0-9.]e)-)+"
_VARIANT = re.compile(rf"[a-z0-9-]+?((?:{_CHANGE})+)")

OptionsType = TypeVar("OptionsType", bound=Options)


def changes_in(name: str) -> str:
    """Return the part of a head's name that tells a variant's options, ``@`` and all; "" where there is none."""
    found = _VARIANT.match(name)
    return found[1] if found else ""


def varied(options: OptionsType, name: str) -> OptionsType:
    """Return a method's options with the values that a variant's name gives.

    Parameters
    ----------
    options : Options
        The run's, of the method.
    name : str
        Such as ``fedcof@shrinkage=0.1@between-class=true``: keys as the run's without the method's prefix.

    Raises
    ------
    ValueError
        If the name is not of that form, names an option twice or one that the method has not, or a value that it does
        not take.
    """
    if not _VARIANT.fullmatch(name):
        raise ValueError(f"{name}: a variant is METHOD@OPTION=VALUE, perhaps with further @OPTION=VALUE")
    keys = {key.removeprefix(options.prefix): key for key in options.keys()}  # noqa: SIM118  # no mapping
    given: dict[str, Any] = {}
    for change in name.split("@")[1:]:
        option, _, value = change.partition("=")
        if option not in keys:
            raise ValueError(f"{name}: no option {option}; there are {', '.join(keys) or 'none'}")
        if keys[option] in given:
            raise ValueError(f"{name}: {option} is given twice")
        given[keys[option]] = from_text(value)
    try:
        changed = type(options).read({**options.to_config(), **given})
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from error
    if problems := changed.problems():
        raise ValueError(f"{name}: {'; '.join(problems)}")
    return changed
