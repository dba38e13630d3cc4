"""The closed-form methods, one class per file; the only table of them. May import options, statistics and heads.

Statistics and heads inside functions only: names and options are read where there is no torch.

A variant is a method with other values of some options than the run's, by a name that says so:
``fedcof@shrinkage=0.1`` is FedCOF with ``fedcof.shrinkage = 0.1``; further options follow, each after an ``@``.
Variants of one method stand beside each other in one run, solved from the same statistics.
"""

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from fedstats_app.base.option import Check, ConfigError, Options, from_text, some_of
from fedstats_app.methods.fed3r import Fed3RMethod
from fedstats_app.methods.fedcgs import FedCGSMethod
from fedstats_app.methods.fedcof import FedCOFMethod
from fedstats_app.methods.fedncm import FedNCMMethod
from fedstats_app.methods.fedroot import FedRootMethod
from fedstats_app.methods.method import Method, Need

__all__ = [
    "METHODS",
    "Fed3RMethod",
    "FedCGSMethod",
    "FedCOFMethod",
    "FedNCMMethod",
    "FedRootMethod",
    "Method",
    "Need",
]

# Such names are those of files, and a training's name goes on after a hyphen: a value has one in an exponent only.
_CHANGE = r"@[a-z][a-z0-9-]*=(?:[\w.()%]|(?<=[0-9.]e)-)+"
_VARIANT = re.compile(rf"[a-z0-9-]+?((?:{_CHANGE})+)")

OptionsType = TypeVar("OptionsType", bound=Options)

# Heads of one run: clients that score them keep an integer for each, their samples and the classes.
MOST_METHODS = 16

# In the order of tables and plots.
_KINDS: tuple[type[Method[Any]], ...] = (
    FedNCMMethod,
    Fed3RMethod,
    FedCOFMethod,
    FedCGSMethod,
    FedRootMethod,
)
METHODS = {kind.name: kind for kind in _KINDS}


def cannot_add(method: Method[Any]) -> str:
    """Say why a method cannot be solved from a sum over clients, and which can; "" if it can."""
    if Need.SCATTER in method.needs:
        return (
            f"{method.full_name} sends factors, which stack and do not add up: take fed3r, which has the same scatter"
        )
    if not method.keeps_rows or (method.sums_rows and method.means_per_class == 1):
        return ""
    several = "several means per class" if method.sums_rows else "every client's means"
    others = _alternatives(name for name, kind in METHODS.items() if not kind.keeps_rows)
    return f"{method.full_name} needs {several}, which do not add up: {others}"


def cannot_be_noisy(method: Method[Any]) -> str:
    """Say why a method cannot be solved from sums with noise, and which can; "" if it can."""
    if not method.takes_noise:
        others = _alternatives(name for name, kind in METHODS.items() if kind.takes_noise)
        return f"{method.full_name} is not served with noise: {others}"
    if method.options != method.options_type():
        return f"{method.full_name}: the noise says how it is solved, so {method.name} has no options with it"
    return ""


def _alternatives(names: Iterable[str]) -> str:
    *others, last = names
    return f"take {', '.join(others)} or {last}"


def head_parts(name: str) -> tuple[str, str]:
    """Return the method, or variant, that a head is of, and what was trained from it, "" if nothing was.

    Of a head that is of no method the name before the first hyphen is taken for its start.
    """
    base = max((method for method in METHODS if re.match(rf"{method}(?![a-z0-9])", name)), key=len, default="")
    if not base:
        start, _, stage = name.partition("-")
        return start, stage
    method = base + changes_in(name)
    return method, name[len(method) :].removeprefix("-")


def is_method(name: str) -> bool:
    """Return whether a name is that of a method or of a variant."""
    return name.partition("@")[0] in METHODS


def method_type(method: str) -> type[Method[Any]]:
    """Return the class of a method or variant; KeyError if the name is of neither."""
    return METHODS[method.partition("@")[0]]


def display_name(method: str) -> str:
    """Return a method's name as its paper spells it, a variant's with its options; an unknown one unchanged."""
    if not is_method(method):
        return method
    name, changes = method_type(method).display_name, method.split("@")[1:]
    return f"{name} ({', '.join(change.replace('=', ' ') for change in changes)})" if changes else name


def method_order(method: str) -> int:
    """Return where a method stands in tables, its variants with it; those that are not known come last."""
    return list(METHODS).index(method_type(method).name) if is_method(method) else len(METHODS)


def method_list(more: tuple[str, ...], *single: str) -> Check:
    """Return a check for some methods, variants and other words, each once, or for a single other word."""

    def check(value: object) -> object:
        names = [name.strip() for name in str(value).split(",")]
        plain = [name for name in names if not is_method(name) or "@" not in name]
        if plain:
            some_of((*METHODS, *more), *(single if plain == names else ()))(",".join(plain))
        for name in names:
            if name not in plain:
                varied(method_type(name).options_type(), name)
        if len(set(names)) < len(names) or len(names) > MOST_METHODS:
            raise ValueError(f"must name each once, and at most {MOST_METHODS}")
        return ",".join(names)

    return check


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
        Such as ``fedcof@shrinkage=0.1@between-class=true``: keys as the run's, without the method's table.

    Raises
    ------
    ValueError
        If the name is not of that form, names an option twice or one that the method has not, or a value that it does
        not take.
    """
    if not _VARIANT.fullmatch(name):
        raise ValueError(f"{name}: a variant is METHOD@OPTION=VALUE, perhaps with further @OPTION=VALUE")
    keys = {key.rpartition(".")[2]: key for key in options.keys()}  # noqa: SIM118  # no mapping
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
