"""The one strict reader: what a message holds is of exactly its kind, type and range, or is refused by name.

Readers of either side raise :class:`Malformed`, or any other ValueError; :func:`reads_replies` and
:func:`reads_requests` turn it into what the server and the clients refuse a message with. No torch is imported here:
a node says which clients it hosts without.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstats_app.base.option import Options

# Larger counts than any site has images: a forged one cannot drown the others without limit.
MAX_COUNT = 10_000_000
# What Flower's records hold.
LARGEST_WHOLE = 2**63 - 1

# Flower cuts nothing; a traceback of megabytes must not travel, nor fill a log.
MAX_REASON = 500
# Of a longer reason the beginning tells where it comes from, and the end what happened (tracebacks name it last).
HEAD_OF_REASON = 100
# Characters at either end of a stranger's megabytes that are looked at.
_LOOKED_AT = 10_000
ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

TYPE_WORDS = {int: "a whole number", float: "a finite float", bool: "true or false", str: "text", bytes: "bytes"}

Read = TypeVar("Read")
Value = TypeVar("Value")
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
Arguments = ParamSpec("Arguments")


# What is refused


class RejectedReply(Exception):
    """A reply that must not be used; the message, cleaned, says what is wrong, allowed and came."""

    def __init__(self, reason: str) -> None:
        super().__init__(clean_reason(reason))


class RejectedRequest(Exception):
    """A request that a client does not answer; the message says why."""

    for_server = True


def clean_reason(reason: object) -> str:
    """Return a reason as one short line of printable text that any wire takes.

    Line breaks and control characters of a stranger must not forge lines of the log. A lone surrogate (from a file
    name that is no UTF-8) cannot be serialised, and a reply that cannot be serialised wedges a SuperNode.
    """
    raw = str(reason)
    if len(raw) > 2 * _LOOKED_AT:  # before anything is made of it: the list of its words takes several times its size
        raw = f"{raw[:_LOOKED_AT]} ... {raw[-_LOOKED_AT:]}"
    text = " ".join(ANSI_ESCAPE.sub("", raw).split())
    if len(text) > MAX_REASON:
        text = f"{text[:HEAD_OF_REASON]} ... {text[HEAD_OF_REASON + 5 - MAX_REASON :]}"
    if text.isprintable():  # nearly always, and character by character it takes ten times as long
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


class Malformed(ValueError):
    """Something in a message is not as it must be; the text says its name, what is allowed and what came."""


def reads_replies(
    read: Callable[Concatenate[Message, Arguments], Read],
) -> Callable[Concatenate[Message, Arguments], Read]:
    """Make a reader of replies refuse errors, and whatever it finds malformed, with :class:`RejectedReply`."""

    @functools.wraps(read)
    def strict(reply: Message, /, *args: Arguments.args, **options: Arguments.kwargs) -> Read:
        if reply.has_error():
            raise RejectedReply(reply.error.reason or f"error code {reply.error.code}")
        try:
            return read(reply, *args, **options)
        except ValueError as error:
            raise RejectedReply(str(error)) from error

    return strict


def reads_requests(purpose: str) -> Callable[[Callable[[Message], Read]], Callable[[Message], Read]]:
    """Make a reader of requests refuse whatever it finds malformed with :class:`RejectedRequest`."""

    def of(read: Callable[[Message], Read]) -> Callable[[Message], Read]:
        @functools.wraps(read)
        def strict(msg: Message) -> Read:
            try:
                return read(msg)
            except ValueError as error:
                raise RejectedRequest(f"not a request {purpose}: {error!s:.300}") from error

        return strict

    return of


# Records and single values


def check_keys(subject: str, found: Mapping[str, Any], required: set[str], optional: set[str] | None = None) -> None:
    """Refuse a mapping whose keys are not exactly the required ones, give or take the optional ones."""
    keys = set(found)
    missing, unexpected = required - keys, keys - required - (optional or set())
    if missing or unexpected:
        raise Malformed(
            f"{subject}: must have the keys {sorted(required)}, "
            f"missing {sorted(missing)}, unexpected {[str(key)[:40] for key in sorted(unexpected)[:5]]}"
        )


def record_of(
    content: RecordDict, name: str, kind: type[Record], keys: set[str] | None = None, optional: set[str] | None = None
) -> Record:
    """Take a record of this kind and with these keys out of a message; any keys by default."""
    record = content.get(name)
    if not isinstance(record, kind):
        got = "none" if record is None else type(record).__name__
        article = "an" if kind is ArrayRecord else "a"
        raise Malformed(f"{name}: must be {article} {kind.__name__}, got {got}")
    if keys is not None:
        check_keys(name, record, keys, optional)
    return record


def typed(values: Mapping[str, Any], key: str, kind: type[Value]) -> Value:
    """Take a value of exactly this type, and finite: 1.5 is no count, 1 no flag and True no seed."""
    value = _present(values, key)
    if not _is_exactly(value, kind):
        raise Malformed(f"{key}: must be {TYPE_WORDS[kind]}, got {value!r:.60}")
    return cast(Value, value)


def whole(values: Mapping[str, Any], key: str, low: int = 0, high: int = LARGEST_WHOLE) -> int:
    """Take a whole number in a range, both ends included."""
    value = _present(values, key)
    if type(value) is not int or not low <= value <= high:
        bounds = f"of at least {low}" if high == LARGEST_WHOLE else f"from {low} to {high}"
        raise Malformed(f"{key}: must be {low if low == high else f'a whole number {bounds}'}, got {value!r:.60}")
    return value


def number(values: Mapping[str, Any], key: str, high: float = math.inf) -> float:
    """Take a finite float from 0 to a bound, both included."""
    value = _present(values, key)
    if not _is_exactly(value, float) or not 0.0 <= value <= high:
        bounds = "of at least 0" if high == math.inf else f"from 0 to {high:g}"
        raise Malformed(f"{key}: must be a finite float {bounds}, got {value!r:.60}")
    return float(value)


def list_of(values: Mapping[str, Any], key: str, kind: type[Value], most: int | None = None) -> list[Value]:
    """Take a list of values of exactly this type, up to a limit."""
    found = _present(values, key)
    if type(found) is not list or (most is not None and len(found) > most):
        bound = "" if most is None else f" of at most {most} values"
        raise Malformed(f"{key}: must be a list{bound}, got {found!r:.60}")
    for value in found:
        if not _is_exactly(value, kind):
            raise Malformed(f"{key}: must be a list, each value {TYPE_WORDS[kind]}, got {value!r:.60}")
    return found


def _is_exactly(value: object, kind: type) -> bool:
    return type(value) is kind and not (isinstance(value, float) and not math.isfinite(value))


def _present(values: Mapping[str, Any], key: str) -> Any:
    if key not in values:
        raise Malformed(f"{key}: is missing")
    return values[key]


# Whole dataclasses


def counted(
    high: int | str = MAX_COUNT, *, low: int = 0, key: str = "", default: Any = 0, optional: bool = False
) -> Any:
    """Define a dataclass field that travels as a whole number from ``low`` to ``high``, or to the field of that name.

    It travels by ``key``, by default its name with hyphens, and if ``optional`` only where it differs from the default;
    ``MISSING`` is no default.
    """
    return field(default=default, metadata={"key": key, "low": low, "high": high, "optional": optional})


def measured(high: float = math.inf) -> Any:
    """Define a dataclass field that travels as a finite float from 0 to ``high``."""
    return field(default=0.0, metadata={"low": 0, "high": high})


def optional(default: object, key: str = "") -> Any:
    """Define a dataclass field that travels only if it differs from its default."""
    return field(default=default, metadata={"key": key, "optional": True})


@functools.cache
def _wire_fields(kind: Any) -> dict[str, tuple[Field[Any], Any]]:
    """List field and type by key of all fields that travel.

    Of a group of options those travel that have a key, of other dataclasses all whose metadata do not say ``apart``.
    """
    types = get_type_hints(kind)
    if issubclass(kind, Options):
        keyed = kind.keys()
    else:
        own = [member for member in fields(kind) if "apart" not in member.metadata]
        keyed = {member.metadata.get("key") or member.name.replace("_", "-"): member for member in own}
    return {key: (member, types[member.name]) for key, member in keyed.items()}


def to_values(value: Any) -> dict[str, Any]:
    """Write the fields of a frozen dataclass by key, those of dataclasses in it among them.

    A key is the field's name with hyphens, unless its metadata have another.
    """
    values: dict[str, Any] = {}
    for key, (member, kind) in _wire_fields(type(value)).items():  # type: ignore[arg-type]  # classes are hashable
        own = getattr(value, member.name)
        if member.metadata.get("optional") and own == member.default:
            continue
        if "write" in member.metadata:
            values[key] = member.metadata["write"](own)
        elif is_dataclass(kind):
            values |= to_values(own)
        else:
            values[key] = float(own) if kind is float else list(own) if get_origin(kind) is tuple else own
    return values


def from_values(kind: type[Read], values: Mapping[str, Any], **apart: Any) -> Read:
    """Read the dataclass that :func:`to_values` wrote, each field of exactly its annotated type and in its range.

    Fields are int, float (finite), bool, str, bytes, Literal, tuples of one of them, dataclasses, or have ``read`` in
    their metadata. What they do not say of ranges the class checks itself. Other keys are ignored; ``apart`` are fields
    that did not travel with the others.

    Raises
    ------
    ValueError
        If a key is missing, or a value is not of its type or not allowed.
    """
    read: dict[str, Any] = {}
    for key, (member, member_kind) in _wire_fields(kind).items():  # type: ignore[arg-type]  # classes are hashable
        if key in values or not member.metadata.get("optional"):
            read[member.name] = _read_field(key, member, member_kind, values, read)
    return kind(**read, **apart)


def _read_field(key: str, member: Field[Any], kind: Any, values: Mapping[str, Any], earlier: Mapping[str, Any]) -> Any:
    if "read" in member.metadata:
        try:
            return member.metadata["read"](_present(values, key))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            error_name = "" if type(error) is ValueError else f"{type(error).__name__}: "  # which says what it is about
            raise Malformed(f"{key}: {error_name}{error!s:.200}") from error
    if "high" in member.metadata:
        low, high = member.metadata["low"], member.metadata["high"]
        high = earlier[high] if isinstance(high, str) else high
        return number(values, key, high) if kind is float else whole(values, key, low, high)
    if is_dataclass(kind):
        return from_values(kind, values)  # type: ignore[arg-type]  # a type, not an instance
    if get_origin(kind) is tuple:
        return tuple(list_of(values, key, get_args(kind)[0]))
    if get_origin(kind) is Literal:
        allowed, value = get_args(kind), typed(values, key, str)
        if value not in allowed:
            raise Malformed(f"{key}: must be one of {', '.join(filter(None, allowed))}, got {value!r:.60}")
        return value
    return typed(values, key, kind)


def from_record(kind: type[Read], content: RecordDict, name: str, record_type: type[Record]) -> Read:
    """Read a dataclass from a record of exactly its keys, those of optional fields left out or not."""
    wanted = _wire_fields(kind)  # type: ignore[arg-type]  # classes are hashable
    may_lack = {key for key, (member, _) in wanted.items() if member.metadata.get("optional")}
    return from_values(kind, record_of(content, name, record_type, wanted.keys() - may_lack, may_lack))


# Replies with metrics


def metrics_reply(msg: Message, metrics: object, **records: ArrayRecord) -> Message:
    """Answer a message with a dataclass as the record ``metrics``, and with other records."""
    return Message(RecordDict({**records, "metrics": MetricRecord(to_values(metrics))}), reply_to=msg)


def read_metrics(content: RecordDict, kind: type[Read], *others: str) -> Read:
    """Read the metrics of a reply that has exactly these and the ``others`` as its records."""
    check_keys("reply", content, {*others, "metrics"})
    return from_record(kind, content, "metrics", MetricRecord)


def metrics_reader(kind: type[Read]) -> Callable[[Message], Read]:
    """Make what reads a reply that has metrics only."""
    return reads_replies(lambda reply: read_metrics(reply.content, kind))
