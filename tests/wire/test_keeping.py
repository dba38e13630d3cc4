import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.keeping import content_digest

CONTENT = RecordDict(
    {
        "sums": to_record({"a": torch.rand(3, 2), "b": torch.arange(4)}),
        "none": to_record({}),
        "metrics": MetricRecord({"num-examples": 3, "seconds": 0.5}),
        "about": ConfigRecord({"name": "é", "digest": b"\x00\xff", "flag": True, "list": [1, 2]}),
    }
)


def test_every_change_has_another_digest() -> None:
    digests = {content_digest(CONTENT)}
    for name, record in {
        "sums": to_record({"a": torch.rand(3, 2), "b": torch.arange(4)}),
        "metrics": MetricRecord({"num-examples": 4, "seconds": 0.5}),
        "about": ConfigRecord({**CONTENT.config_records["about"], "digest": b"\x00\xfe"}),
        "more": ConfigRecord({}),
    }.items():
        digests.add(content_digest({**CONTENT, name: record}))
    assert len(digests) == 5
