"""Digests of messages' contents. Only Flower and the standard library are imported here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, RecordDict


def arrays_digest(content: RecordDict, before: str = "") -> str:
    """Return the SHA-256 of the bytes of all arrays, 64 hex digits, after those that gave ``before``."""
    digest = hashlib.sha256(before.encode())
    for name in sorted(content.array_records):
        for key in sorted(record := content.array_records[name]):
            digest.update(record[key].data)
    return digest.hexdigest()


def content_digest(content: Mapping[str, Any]) -> str:
    """Return a SHA-256 of records, 64 hex digits, the same for the same records, without a copy of the arrays."""
    digest = hashlib.sha256()
    for name, record in content.items():
        items: dict[str, object] = dict(record)
        if isinstance(record, ArrayRecord):
            items = {key: [array.dtype, array.shape, array.stype, len(array.data)] for key, array in record.items()}
        digest.update(json.dumps([name, type(record).__name__, items], default=bytes.hex).encode())
        for array in record.values() if isinstance(record, ArrayRecord) else ():
            digest.update(array.data)
    return digest.hexdigest()
