"""Values for any options object, found by trying what its checks allow: so a new option is tested without a word."""

import itertools
import math
import re
from dataclasses import fields, replace
from typing import Any, TypeVar

from fedstats_app.base.option import Check, Options
from fedstats_app.methods import METHODS, Method, Need

Group = TypeVar("Group", bound=Options)

NUMBERS = (False, True, 0, 3, 0.5, math.inf)


def allowed_values(check: Check) -> list[object]:
    """Return numbers, flags and words that a check allows; it names the words where it refuses something."""
    try:
        check(object())
        words: list[str] = []
    except ValueError as error:
        words = re.findall(r"[\w-]+", str(error))
    found: list[object] = []
    for value in (*NUMBERS, *words):
        try:
            checked = check(value)
        except ValueError:
            continue
        if checked not in found:
            found.append(checked)
    return found


def variations(defaults: Group, *, pairs: bool = True) -> list[Group]:
    """Return the options and all others that differ in one value, or in two, and contradict nothing."""
    others = [
        {one.name: value}
        for one in fields(defaults)
        for value in allowed_values(one.metadata["check"])
        if value != getattr(defaults, one.name)
    ]
    both = [one | other for one, other in itertools.combinations(others, 2) if one.keys() != other.keys()]
    made = [replace(defaults, **changes) for changes in ({}, *others, *(both if pairs else ()))]
    return [options for options in made if not options.problems()]


def configured(method: str, *, pairs: bool = True) -> list[Method[Any]]:
    """Return a method with all variations of its options, and several means per class if it takes them."""
    kind = METHODS[method]
    made = [kind(options) for options in variations(kind.options_type(), pairs=pairs)]
    return [*made, kind(kind.options_type(), 3)] if Need.SEVERAL_MEANS in kind.needs else made
