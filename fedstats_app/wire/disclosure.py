"""Record of what left each site: every field of every reply, by shape and size, never by value."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

from flwr.app import Array, Message, MetricRecord, RecordDict

from fedstats_app.wire.keeping import arrays_digest
from fedstats_app.wire.reading import clean_reason

# Of a stranger's reply: how many fields are described, how much of a field's name, and how many extents of its shape;
# and how many different errors of a client are kept.
MAX_FIELDS, MAX_NAME, MAX_EXTENTS, MAX_ERRORS = 200, 80, 16, 10


class DisclosureLedger:
    """Keeps account of what left each site in a run.

    Replies of one client to the same kind of message (the rounds of a training) share an entry, which has the fields
    of the latest. Errors that a site sent are part of what left it; those that the server made up for a site that did
    not answer, known by ``server_codes``, are not.
    """

    def __init__(self, server_codes: Collection[int] = ()) -> None:
        self._server_codes = frozenset(server_codes)
        self._sent: dict[tuple[int, str], dict[str, Any]] = {}

    def note(self, reply: Message) -> None:
        """Take a reply into account, whatever becomes of it."""
        if reply.has_error() and reply.error.code in self._server_codes:
            return
        # A reply's type is that of the message it answers.
        client, message = int(reply.metadata.src_node_id), clean_reason(reply.metadata.message_type)
        empty = {"num_replies": 0, "bytes": 0, "fields": [], "classes_suppressed": 0, "errors": []}
        entry = self._sent.setdefault((client, message), {"client": client, "message": message, **empty})
        entry["num_replies"] += 1
        if reply.has_error():
            reason = clean_reason(reply.error.reason or f"error code {reply.error.code}")
            entry["bytes"] += len(reason.encode())
            if len(entry["errors"]) < MAX_ERRORS and reason not in entry["errors"]:
                entry["errors"].append(reason)
            elif reason not in entry["errors"]:
                entry["errors_left_out"] = entry.get("errors_left_out", 0) + 1
            return
        described = _fields(reply.content)
        entry["fields"] = list(itertools.islice(described, MAX_FIELDS))
        left_out = [field["bytes"] for field in described]
        entry["bytes"] += sum(field["bytes"] for field in entry["fields"]) + sum(left_out)
        entry.pop("fields_left_out", None)
        if left_out:
            entry["fields_left_out"] = len(left_out)
        if reply.content.array_records:
            entry["sha256"] = arrays_digest(reply.content, entry.get("sha256", ""))
        metrics = reply.content.get("metrics")
        number = metrics.get("num-suppressed-classes", 0) if isinstance(metrics, MetricRecord) else 0
        entry["classes_suppressed"] = number if isinstance(number, int) else 0

    def entries(self) -> list[dict[str, Any]]:
        """List one entry per client and kind of message, in that order.

        Each has the client, the message it answered, the number of replies, their bytes (values, array headers and
        text; Flower's envelope is not counted), the SHA-256 of all their arrays, the fields of the latest (name, dtype,
        shape, bytes), how many classes the client says that its policy suppressed, and the errors it sent. What a
        stranger can make long is cut, and how many fields and errors there were beyond those kept is said.
        """
        return [self._sent[key] for key in sorted(self._sent)]


def _fields(content: RecordDict) -> Iterator[dict[str, Any]]:
    for record_name, record in content.items():
        for key, value in record.items():
            name = clean_reason(f"{record_name}.{key}")[:MAX_NAME]
            if isinstance(value, Array):
                shape = [int(extent) for extent in value.shape[:MAX_EXTENTS]]
                yield {
                    "field": name,
                    "dtype": clean_reason(value.dtype)[:MAX_NAME],
                    "shape": shape,
                    "bytes": len(value.data),
                }
            else:
                yield {"field": name, **_of_values(value)}


def _of_values(value: object) -> dict[str, Any]:
    """Describe what a record of numbers, strings or bytes holds under one key: a single value or a list."""
    values = value if isinstance(value, list) else [value]
    kinds = sorted({type(item).__name__ for item in values})
    size = sum(
        len(item.encode("utf-8", "replace")) if isinstance(item, str) else len(item) if isinstance(item, bytes) else 8
        for item in values
    )
    shape = [len(values)] if isinstance(value, list) else []
    return {"dtype": ", ".join(kinds), "shape": shape, "bytes": size}
