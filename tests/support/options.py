"""Values for any options object, found by trying what its checks allow: so a new option is tested without a word."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import fields, replace
from typing import TypeVar

from fedstats_app.base.option import Check, Options
from fedstats_app.methods import METHODS, ConfiguredMethod

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


def configured(method: str, *, pairs: bool = True) -> list[ConfiguredMethod]:
    """Return a method with all variations of its options, and several means per class if it takes them."""
    record = METHODS[method]
    made = [record.configured(options) for options in variations(record.options(), pairs=pairs)]
    return [*made, record.configured(means_per_class=3)] if record.needs.several_means else made
