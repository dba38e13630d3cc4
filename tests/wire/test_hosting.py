"""What a SuperNode says of itself, and what it cannot be made to say."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedstats_app.wire import NodeInfo, RejectedReply, node_info_reply, read_node_info
from tests.support.local_grid import instruction

QUESTION = instruction(RecordDict(), "query.clients")


@pytest.mark.parametrize(
    "info",
    [
        NodeInfo(0, 1),
        NodeInfo(99, 100),
        NodeInfo(0, 1, process=2**62, threads=2),
        NodeInfo(),
        NodeInfo(class_names=("cat", "dog", "Łódź")),
        NodeInfo(None, 4),
    ]
    + [NodeInfo(class_names=("cat", "dog"), class_ids=(0, 7)), NodeInfo(class_ids=())],
)
def test_round_trip(info: NodeInfo) -> None:
    expected = info if info.partition_id is not None or not info.num_partitions else NodeInfo()

    assert read_node_info(node_info_reply(QUESTION, info)) == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ConfigRecord(), "must have the keys"),
        (ConfigRecord({"partition-id": 0}), r"must have the keys .* missing \['num-partitions'\]"),
        (ConfigRecord({"partition-id": 0, "num-partitions": 2, "class-names": ["a"]}), "must have the keys"),
        (ConfigRecord({"x" * 10_000: 0}), "x{40}'"),
        (ConfigRecord({"partition-id": -1, "num-partitions": 2}), "partition-id: must be .* from 0 to 1, got -1"),
        (ConfigRecord({"partition-id": 2, "num-partitions": 2}), "partition-id: must be .* from 0 to 1, got 2"),
        (ConfigRecord({"partition-id": 0, "num-partitions": 0}), "num-partitions: must be .* at least 1, got 0"),
        (
            ConfigRecord({"partition-id": 0, "num-partitions": 1, "threads": -1}),
            "threads: must be .* at least 0, got -1",
        ),
        (ConfigRecord({"partition-id": 0, "num-partitions": 1, "process": "a"}), "process: must be .* got 'a'"),
        (ConfigRecord({"class-names": ["a"], "threads": 1}), r"unexpected \['threads'\]"),
        (ConfigRecord({"class-names": ["cat", "cat"]}), "must differ"),
        (ConfigRecord({"class-names": [""]}), "printable"),
        (ConfigRecord({"class-names": ["a\nb"]}), "printable"),
        (ConfigRecord({"class-names": ["a" * 201]}), "must have 1 to 200 printable"),
        (ConfigRecord({"class-names": [str(i) for i in range(100_001)]}), "a list of at most 100000 values"),
        (ConfigRecord({"class-ids": [0]}), "must have the keys"),
        (ConfigRecord({"class-names": ["a"], "class-ids": [0, 1]}), "must be 1 ascending whole numbers"),
        (ConfigRecord({"class-names": ["a"], "class-ids": [-1]}), "must be 1 ascending"),
        (ConfigRecord({"class-names": ["a", "b"], "class-ids": [1, 1]}), "must be 2 ascending"),
        (ConfigRecord({"class-names": ["a", "b"], "class-ids": [2, 1]}), "must be 2 ascending"),
        (ConfigRecord({"class-names": ["a"], "class-ids": [2**63]}), "must be 1 ascending"),
    ],
)
def test_hostile_values_are_refused(record: ConfigRecord, reason: str) -> None:
    with pytest.raises(RejectedReply, match=reason):
        read_node_info(Message(RecordDict({"node": record}), reply_to=QUESTION))
