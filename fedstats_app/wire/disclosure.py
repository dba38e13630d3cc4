"""What left each site, as the server received it: every field of every reply, by shape and size, never by value."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from flwr.app import Array, Message, MetricRecord, RecordDict

from fedstats_app.wire.reading import clean_reason

# Of a stranger's reply: how many fields are described, how much of a field's name, and how many extents of its shape;
# and how many different errors of a client are kept.
MAX_FIELDS, MAX_NAME, MAX_EXTENTS, MAX_ERRORS = 200, 80, 16, 10


@dataclass
class _Sent:
    """All replies of one client to one kind of message."""

    num_replies: int = 0
    num_bytes: int = 0
    fields: list[dict[str, object]] = field(default_factory=list)
    fields_left_out: int = 0
    classes_suppressed: int = 0
    errors: list[str] = field(default_factory=list)
    errors_left_out: int = 0


class DisclosureLedger:
    """Keeps account of what left each site in a run.

    Replies of one client to the same kind of message (the rounds of a training) share an entry, which has the fields
    of the latest. Errors that a site sent are part of what left it; those that the server made up for a site that did
    not answer are not.

    Parameters
    ----------
    server_codes : collection of int
        Codes of errors that are made on the server's side.
    """

    def __init__(self, server_codes: Collection[int] = ()) -> None:
        self._server_codes = frozenset(server_codes)
        self._sent: dict[tuple[int, str], _Sent] = {}

    def note(self, reply: Message) -> None:
        """Take a reply into account, whatever becomes of it."""
        if reply.has_error() and reply.error.code in self._server_codes:
            return
        # A reply's type is that of the message it answers.
        key = (int(reply.metadata.src_node_id), clean_reason(reply.metadata.message_type))
        sent = self._sent.setdefault(key, _Sent())
        sent.num_replies += 1
        if reply.has_error():
            reason = clean_reason(reply.error.reason or f"error code {reply.error.code}")
            sent.num_bytes += len(reason.encode())
            if reason not in sent.errors:
                if len(sent.errors) < MAX_ERRORS:
                    sent.errors.append(reason)
                else:
                    sent.errors_left_out += 1
            return
        sent.fields, sent.fields_left_out = [], 0
        for one in _fields(reply.content):
            sent.num_bytes += int(str(one["bytes"]))
            if len(sent.fields) < MAX_FIELDS:
                sent.fields.append(one)
            else:
                sent.fields_left_out += 1
        sent.classes_suppressed = _suppressed(reply.content)

    def entries(self) -> list[dict[str, object]]:
        """Return one entry per client and kind of message, in that order.

        Each has the client, the message it answered, the number of replies, their bytes (values, array headers and
        text; Flower's envelope is not counted), the fields of the latest (name, dtype, shape, bytes), how many classes
        the client says that its policy suppressed, and the errors it sent. What a stranger can make long is cut, and
        how many fields and errors there were beyond those kept is said.
        """
        entries = []
        for (client, message), sent in sorted(self._sent.items()):
            entry: dict[str, object] = {
                "client": client,
                "message": message,
                "num_replies": sent.num_replies,
                "bytes": sent.num_bytes,
                "fields": sent.fields,
                "classes_suppressed": sent.classes_suppressed,
                "errors": sent.errors,
            }
            if sent.fields_left_out:
                entry["fields_left_out"] = sent.fields_left_out
            if sent.errors_left_out:
                entry["errors_left_out"] = sent.errors_left_out
            entries.append(entry)
        return entries


def _fields(content: RecordDict) -> Iterator[dict[str, object]]:
    for record_name, record in content.items():
        for key, value in record.items():
            name = clean_reason(f"{record_name}.{key}")[:MAX_NAME]
            yield {"field": name, **(_of_array(value) if isinstance(value, Array) else _of_values(value))}


def _of_array(array: Array) -> dict[str, object]:
    shape = [int(extent) for extent in array.shape[:MAX_EXTENTS]]
    return {"dtype": clean_reason(array.dtype)[:MAX_NAME], "shape": shape, "bytes": len(array.data)}


def _of_values(value: object) -> dict[str, object]:
    """Describe what a record of numbers, strings or bytes holds under one key: a single value or a list."""
    values = value if isinstance(value, list) else [value]
    kinds = sorted({type(one).__name__ for one in values})
    size = sum(
        len(one.encode("utf-8", "replace")) if isinstance(one, str) else len(one) if isinstance(one, bytes) else 8
        for one in values
    )
    shape = [len(values)] if isinstance(value, list) else []
    return {"dtype": ", ".join(kinds), "shape": shape, "bytes": size}


def _suppressed(content: RecordDict) -> int:
    metrics = content.get("metrics")
    number = metrics.get("num-suppressed-classes", 0) if isinstance(metrics, MetricRecord) else 0
    return number if isinstance(number, int) else 0
