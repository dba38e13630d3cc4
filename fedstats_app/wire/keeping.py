"""A message's content as bytes and back: what a node keeps of an answer to give it again, and digests of questions.

Only Flower and the standard library are imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_PLAIN = {"config": ConfigRecord, "metrics": MetricRecord}
_LENGTH = 8


def content_to_bytes(content: Mapping[str, object]) -> bytes:
    """Return records as bytes, the same for the same records: a JSON header with its length before it, and all arrays.

    Raises
    ------
    TypeError
        If something is no record of Flower's, or a value has no JSON form.
    """
    return b"".join(_parts(content))


def _parts(content: Mapping[str, object]) -> list[bytes]:
    header: dict[str, object] = {}
    data: list[bytes] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = {
                key: [array.dtype, list(array.shape), array.stype, len(array.data)] for key, array in record.items()
            }
            header[name] = ["arrays", arrays]
            data += [array.data for array in record.values()]
        elif isinstance(record, ConfigRecord | MetricRecord):
            kind = "config" if isinstance(record, ConfigRecord) else "metrics"
            values = {key: {"hex": item.hex()} if isinstance(item, bytes) else item for key, item in record.items()}
            header[name] = [kind, values]
        else:
            raise TypeError(f"{name}: must be a record, got {type(record).__name__}")
    text = json.dumps(header).encode()
    return [len(text).to_bytes(_LENGTH, "little"), text, *data]


def content_from_bytes(data: bytes) -> RecordDict:
    """Return the records that :func:`content_to_bytes` was given."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    content = RecordDict()
    for name, (kind, values) in json.loads(data[_LENGTH:end]).items():
        if kind == "arrays":
            arrays = {}
            for key, (dtype, shape, stype, length) in values.items():
                arrays[key] = Array(dtype, tuple(shape), stype, data[end : end + length])
                end += length
            content[name] = ArrayRecord(arrays)
        else:
            plain = {
                key: bytes.fromhex(item["hex"]) if isinstance(item, dict) else item for key, item in values.items()
            }
            content[name] = _PLAIN[kind](plain)
    return content


def arrays_digest(content: RecordDict, before: str = "") -> str:
    """Return the SHA-256 of the bytes of all arrays, 64 hex digits, after those that gave ``before``."""
    digest = hashlib.sha256(before.encode())
    for name in sorted(content.array_records):
        for key in sorted(record := content.array_records[name]):
            digest.update(record[key].data)
    return digest.hexdigest()


def content_digest(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of :func:`content_to_bytes`, 64 hex digits, without a copy of the arrays."""
    digest = hashlib.sha256()
    for part in _parts(content):
        digest.update(part)
    return digest.hexdigest()
