"""Options as frozen dataclasses: each field with its key, its default and the check of its value.

Options are defined beside the code that uses them, and passed whole. A group knows its own keys:

    @dataclass(frozen=True)
    class PartitionOptions(Options):
        num_clients: int = option(100, whole(1, 1_000_000), "partitions of the data set")

The run-config's check, the lines of pyproject.toml, docs/settings.md and the Strategy classes are made from these.

Only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self

# A check returns the value in its final type, or raises ValueError saying what is allowed.
Check = Callable[[object], object]


# What the specifications of 16 methods need is about 2,000 characters.
MAX_JSON_LENGTH = 100_000


class ConfigError(ValueError):
    """Every problem of a configuration, one per line."""

    for_server = True


def option(default: object, check: Check, sentence: str = "", *, key: str = "", optional: bool = False) -> Any:
    """Define an option as a dataclass field.

    Parameters
    ----------
    default : object
        The one default, of the run-config and of the Strategy classes.
    check : Check
        Of its value.
    sentence : str
        What it means, for every place that explains it.
    key : str
        Where it is not the usual one.
    optional : bool
        In a message it travels only if it differs from the default.
    """
    return field(default=default, metadata={"check": check, "sentence": sentence, "key": key, "optional": optional})


@dataclass(frozen=True)
class Options:
    """A group of options; a field made by :func:`option` can be set by its key.

    A key is the field's name with hyphens, behind the name of the group's table and a dot if it has one, unless the
    field names another: ``seed``, ``fedcof.shrinkage``.
    """

    table: ClassVar[str] = ""

    @classmethod
    def keys(cls) -> dict[str, Field[Any]]:
        """Return the fields by key."""
        own = [member for member in fields(cls) if "check" in member.metadata]
        table = f"{cls.table}." if cls.table else ""
        return {member.metadata["key"] or table + member.name.replace("_", "-"): member for member in own}

    @classmethod
    def read(cls, values: Mapping[str, object]) -> Self:
        """Return the group with the values of its keys; others keep their default, and what is no key of it is ignored.

        Raises
        ------
        ConfigError
            With all problems of single values, one per line; those of values together are :meth:`problems`.
        """
        return cls._checked({key: (member, values[key]) for key, member in cls.keys().items() if key in values})

    @classmethod
    def of(cls, **values: object) -> Self:
        """Make the group from values by the fields' names, checked singly and together; ConfigError names all problems.

        A field of another group is a TypeError, as any unknown argument.
        """
        known = {member.name: member for member in cls.keys().values()}
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"there is no option {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
        group = cls._checked({name: (known[name], value) for name, value in values.items()})
        if problems := group.problems():
            raise ConfigError("\n".join(problems))
        return group

    @classmethod
    def _checked(cls, values: Mapping[str, tuple[Field[Any], object]]) -> Self:
        """Make the group from fields and values by the name that the user knows them by."""
        problems, checked = [], {}
        for name, (member, value) in values.items():
            try:
                checked[member.name] = member.metadata["check"](value)
            except ValueError as error:
                problems.append(f"{name}: {error}, got {value!r}")
        try:
            group = cls(**checked)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ConfigError("\n".join(problems))
        return group

    def problems(self) -> list[str]:
        """Return what is wrong with the values together, one line each; a group overrides it."""
        return []

    def conflicts(self, config: Any) -> Iterable[str]:
        """Yield what is wrong with the values beside those of a run's other groups; a group overrides it."""
        return ()

    def to_config(self) -> dict[str, Any]:
        """Return the values by key, from which :meth:`read` makes the group again."""
        return {key: getattr(self, member.name) for key, member in self.keys().items()}


def unknown_keys(keys: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Refuse keys that are not known, one line each, with the same key in a table or else the nearest."""
    for key in sorted(set(keys) - set(known)):
        near = [name for name in known if name.endswith(f".{key}")] or difflib.get_close_matches(key, known, n=1)
        yield f"{key}: no such key" + (f"; did you mean {' or '.join(near)}?" if near else "")


def flattened(values: Mapping[str, object], table: str = "") -> dict[str, object]:
    """Write the keys of tables behind the table's name and a dot, as Flower does."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= flattened(value, f"{table}{key}.") if isinstance(value, Mapping) else {table + key: value}
    return flat


def from_text(text: str) -> object:
    """Return true, false and numbers as what they are, and words as text."""
    if text in ("true", "false"):
        return text == "true"
    if "_" not in text:  # Python reads 1_000 as a number
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
    return text


def one_of(*allowed: str) -> Check:
    """Return a check for one of some words; a near miss is named."""

    def check(value: object) -> object:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            raise ValueError(f"must be one of {', '.join(allowed)}" + (f" (did you mean {close[0]}?)" if close else ""))
        return value

    return check


def some_of(allowed: tuple[str, ...], *single: str) -> Check:
    """Return a check for some of the allowed words, each once, separated by commas; or a single other word."""

    def check(value: object) -> object:
        names = [name.strip() for name in str(value).split(",")]
        if value not in single and (not set(names) <= set(allowed) or len(set(names)) != len(names)):
            words = "".join(f"{word}, " for word in single)
            raise ValueError(
                f"must be {words}{'or ' if single else ''}some of {', '.join(allowed)}, separated by commas"
            )
        return ",".join(names)

    return check


def word_list(value: object) -> object:
    """Check for different words, separated by commas, or the empty text."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) and value else []
    if not isinstance(value, str) or "" in words or len(set(words)) < len(words):
        raise ValueError("must be different words, separated by commas, or empty")
    return ",".join(words)


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


def flag_or(word: str) -> Check:
    """Return a check for true, false or one word."""

    def check(value: object) -> object:
        if not isinstance(value, bool) and value != word:
            raise ValueError(f"must be true, false or {word}")
        return value

    return check


def whole(low: int, high: int, *, word: str = "") -> Check:
    """Return a check for a whole number in a range, both ends included, or for one word."""

    def check(value: object) -> object:
        if word and value == word:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}" + (f' or "{word}"' if word else ""))
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


def empty_or(check: Check) -> Check:
    """Return a check that also takes the empty text."""
    return lambda value: value if value == "" else check(value)


def is_absolute(path: str) -> bool:
    """Return whether a path leads to the same place from any folder, on any system."""
    return path.startswith(("/", "~", "\\\\")) or path[1:2] == ":"


def absolute(value: object, description: str = "an absolute path") -> object:
    """Check for the empty text or an absolute path: the app does not run in the user's folder."""
    if not isinstance(value, str) or (value and not is_absolute(value)):
        raise ValueError(f"must be {description} (or start with ~)")
    return value


def run_folder(value: object) -> object:
    """Check for the empty text or the absolute path of a run folder."""
    return absolute(value, "the absolute path of a run folder")


def run_folder_or_latest(value: object) -> object:
    """Check for `latest`, or as :func:`run_folder`."""
    return value if value == "latest" else run_folder(value)


def as_text(write: Callable[[Any], object], read: Callable[[Any], Any], key: str = "") -> dict[str, Any]:
    """Return the metadata of a dataclass field that travels as JSON of ``write(value)``; ``read`` makes it again."""
    # A worker reads the same text again for every client.
    read_once = functools.lru_cache(maxsize=4)(lambda text: read(json.loads(text)))

    def read_text(text: object) -> Any:
        if type(text) is not str or len(text) > MAX_JSON_LENGTH:
            got = len(text) if isinstance(text, str) else f"{text!r:.60}"
            raise ValueError(f"must be JSON, which may take at most {MAX_JSON_LENGTH} characters, got {got}")
        return read_once(text)

    return {"key": key, "write": lambda value: json.dumps(write(value)), "read": read_text}
