"""Checks of single values: each returns the value in its final type, or raises ValueError saying what is allowed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable

from fedstats_app.config.names import (
    BACKBONES,
    MADE_HEADS,
    METHOD_NAMES,
    PERSONAL_APPROACHES,
    TEXT_PREFIXES,
    TUNED_PARTS,
)

# A check returns the value in its final type, or raises ValueError saying what is allowed.
Check = Callable[[object], object]


class ConfigError(ValueError):
    """Every problem of a configuration, one per line."""


def one_of(*allowed: str) -> Check:
    """Return a check for one of some words; a near miss is named."""

    def check(value: object) -> object:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            raise ValueError(f"must be one of {', '.join(allowed)}" + (f" (did you mean {close[0]}?)" if close else ""))
        return value

    return check


def text(value: object) -> object:
    """Check for text."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def flag(value: object) -> object:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole(low: int, high: int) -> Check:
    """Return a check for a whole number in a range, both ends included."""

    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


def number(
    low: float, high: float = math.inf, *, open_low: bool = False, word: str = "", infinite: bool = False
) -> Check:
    """Return a check for a number, as a number or as text, or for one word."""

    def check(value: object) -> object:
        if word and value == word:
            return value
        bracket = "(" if open_low else "["
        allowed = f"a number in {bracket}{low:g}, {high:g}{']' if infinite or not math.isinf(high) else ')'}"
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)  # type: ignore[arg-type]  # whatever cannot be converted raises
        except (TypeError, ValueError):
            number = math.nan
        inside = low < number <= high if open_low else low <= number <= high
        if not inside or (math.isinf(number) and not infinite):
            raise ValueError(f"must be {allowed}" + (f' or "{word}"' if word else ""))
        return number

    return check


def method_list(value: object) -> object:
    """Check for all, or some methods."""
    names = METHOD_NAMES if value == "all" else tuple(name.strip() for name in str(value).split(","))
    unknown = [name for name in names if name not in METHOD_NAMES]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"must be all, or some of {', '.join(METHOD_NAMES)}, separated by commas")
    return "all" if value == "all" else ",".join(names)


def approach_list(value: object) -> object:
    """Check for none, all, or some ways to personal models."""
    names = tuple(name.strip() for name in str(value).split(","))
    if value not in ("none", "all") and (not set(names) <= set(PERSONAL_APPROACHES) or len(set(names)) != len(names)):
        raise ValueError(f"must be none, all, or some of {', '.join(PERSONAL_APPROACHES)}, separated by commas")
    return ",".join(names)


def start_head_list(value: object) -> object:
    """Check for best, all, or some heads to start from."""
    names = tuple(name.strip() for name in str(value).split(","))
    allowed = (*METHOD_NAMES, *MADE_HEADS)
    if value not in ("best", "all") and (not set(names) <= set(allowed) or len(set(names)) != len(names)):
        raise ValueError(f"must be best, all, or some of {', '.join(allowed)}, separated by commas")
    return ",".join(names)


def tuned_part(value: object) -> object:
    """Check for what FedMeZO is to tune."""
    patterns = [one.strip() for one in str(value).removeprefix("names:").split(",")]
    by_name = str(value).startswith("names:") and all(patterns)
    if value not in TUNED_PARTS and not by_name:
        raise ValueError(f"must be one of {', '.join(TUNED_PARTS)}, or names:PATTERN,PATTERN,...")
    return value


def dataset_spec(value: object) -> object:
    """Check for where a data set is."""
    kind, _, where = str(value).partition(":")
    if not (value == "builtin" or (kind in ("hub", "folder", "parquet", "csv") and where)):
        raise ValueError("must be builtin, hub:NAME, folder:/PATH, parquet:/PATH or csv:/PATH")
    if kind in ("folder", "parquet", "csv") and not is_absolute(where):
        # The app does not run in the user's folder, so a relative path would lead somewhere else.
        raise ValueError("must name an absolute path (or one that starts with ~)")
    return value


def is_absolute(path: str) -> bool:
    """Return whether a path leads to the same place from any folder, on any system."""
    return path.startswith(("/", "~", "\\\\")) or path[1:2] == ":"


def empty_or(check: Check) -> Check:
    """Return a check that also takes the empty text."""
    return lambda value: value if value == "" else check(value)


def text_template(value: object) -> object:
    """Check for a prompt around a text, or the empty text."""
    if not isinstance(value, str) or (value and (value.count("{text}") != 1 or value.count("{mask}") > 1)):
        raise ValueError("must hold {text} once and {mask} at most once, or be empty")
    return value


def word_list(value: object) -> object:
    """Check for different words, separated by commas, or the empty text."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) and value else []
    if not isinstance(value, str) or "" in words or len(set(words)) < len(words):
        raise ValueError("must be different words, separated by commas, or empty")
    return ",".join(words)


def device_name(value: object) -> object:
    """Check for a device as torch names them, or auto."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return value


def backbone_name(value: object) -> object:
    """Check for a network that can be loaded."""
    name = str(value).removeprefix("random:")
    prefixes = ("timm:", *TEXT_PREFIXES)
    if not (name in BACKBONES or (name.startswith(prefixes) and name not in prefixes)):
        close = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        with_prefix = ", ".join(f"{prefix}NAME" for prefix in prefixes)
        raise ValueError(f"must be one of {', '.join(BACKBONES)}, {with_prefix} or random:NAME{hint}")
    return value
