"""A message's content as bytes and back."""

import hashlib

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.keeping import content_digest, content_from_bytes, content_to_bytes

CONTENT = RecordDict(
    {
        "sums": to_record({"a": torch.rand(3, 2), "b": torch.arange(4)}),
        "none": to_record({}),
        "metrics": MetricRecord({"num-examples": 3, "seconds": 0.5}),
        "about": ConfigRecord({"name": "é", "digest": b"\x00\xff", "flag": True, "list": [1, 2]}),
    }
)


def test_what_is_kept_is_what_was_there() -> None:
    data = content_to_bytes(CONTENT)
    again = content_from_bytes(data)

    assert list(again) == list(CONTENT) and all(again[name] == CONTENT[name] for name in CONTENT)
    assert content_to_bytes(again) == data and content_digest(CONTENT) == hashlib.sha256(data).hexdigest()


def test_every_change_has_another_digest() -> None:
    digests = {content_digest(CONTENT)}
    for name, record in {
        "sums": to_record({"a": torch.rand(3, 2), "b": torch.arange(4)}),
        "metrics": MetricRecord({"num-examples": 4, "seconds": 0.5}),
        "more": ConfigRecord({}),
    }.items():
        digests.add(content_digest({**CONTENT, name: record}))
    assert len(digests) == 4


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="x: must be a record, got int"):
        content_to_bytes({"x": 3})
