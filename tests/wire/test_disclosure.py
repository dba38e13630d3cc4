"""The account of what left each site: every field by name, shape and size, whatever the reply, and no value."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedstats_app.grid.in_process import begin_task
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import RUN_ID, instruction
from fedstats_app.wire import NodeInfo, RejectedReply, node_info_reply, read_statistics_reply, statistics_reply
from fedstats_app.wire.disclosure import MAX_ERRORS, MAX_FIELDS, DisclosureLedger
from fedstats_app.wire.reading import MAX_REASON
from fedstats_app.wire.serving import unpack_reply
from tests.wire.messages import DIM, features_and_labels, honest_reply, request_for


def noted(*replies: Message) -> list[dict[str, object]]:
    ledger = DisclosureLedger({101})
    for reply in replies:
        ledger.note(reply)
    entries = ledger.entries()
    json.dumps(entries, allow_nan=False)  # plain values only
    return entries


def test_statistics_are_described_field_by_field() -> None:
    request = request_for(StatisticsSpec(gram=True))
    reply = honest_reply(request, node=7)

    [entry] = noted(reply)

    assert (entry["client"], entry["message"], entry["num_replies"]) == (7, "query.statistics", 1)
    assert entry["bytes"] == read_statistics_reply(reply, request).wire_bytes
    fields = {one.pop("field"): one for one in entry["fields"]}  # type: ignore[attr-defined]
    rows = reply.content["statistics"]["class-ids"].shape[0]  # type: ignore[index, call-overload]
    assert fields == {
        "statistics.class-ids": {"dtype": "int64", "shape": [rows], "bytes": 128 + 8 * rows},
        "statistics.counts": {"dtype": "int64", "shape": [rows], "bytes": 128 + 8 * rows},
        "statistics.class-sums": {"dtype": "float32", "shape": [rows, DIM], "bytes": 128 + 4 * rows * DIM},
        "statistics.within": {"dtype": "float32", "shape": [21], "bytes": 128 + 2 * DIM * (DIM + 1)},
        "metrics.num-examples": {"dtype": "int", "shape": [], "bytes": 8},
        "metrics.num-unreadable": {"dtype": "int", "shape": [], "bytes": 8},
        "metrics.seconds": {"dtype": "float", "shape": [], "bytes": 8},
        "about.backbone-fingerprint": {"dtype": "str", "shape": [], "bytes": 64},
    }
    assert entry["classes_suppressed"] == 0 and entry["errors"] == []


def test_the_number_of_suppressed_classes_is_in_it() -> None:
    request = request_for()
    statistics = request.statistics(*features_and_labels())
    reply = statistics_reply(instruction(request.to_content()), statistics, num_suppressed_classes=3)

    [entry] = noted(reply)

    assert entry["classes_suppressed"] == 3 and read_statistics_reply(reply, request).num_suppressed_classes == 3


def test_class_names_are_part_of_what_left() -> None:
    names = ("cat", "Łódź")

    [entry] = noted(node_info_reply(instruction(RecordDict(), "query.clients"), NodeInfo(class_names=names)))

    assert entry["message"] == "query.clients"
    assert entry["fields"] == [{"field": "node.class-names", "dtype": "str", "shape": [2], "bytes": 3 + 7}]
    assert "cat" not in json.dumps(entry)


def test_rounds_share_an_entry_and_add_their_bytes() -> None:
    def reply(size: int, node: int = 3) -> Message:
        content = RecordDict({"arrays": ArrayRecord({"head.weight": Array(np.zeros(size, dtype=np.float32))})})
        return Message(content, reply_to=instruction(RecordDict(), "train", node))

    entries = noted(reply(5), reply(5), reply(9), reply(1, node=2))

    found = [(entry["client"], entry["num_replies"], entry["bytes"]) for entry in entries]
    assert found == [(2, 1, 128 + 4), (3, 3, 3 * 128 + 4 * 19)]
    assert entries[1]["fields"] == [{"field": "arrays.head.weight", "dtype": "float32", "shape": [9], "bytes": 164}]


def test_a_sites_error_left_it_and_the_servers_own_did_not() -> None:
    msg = instruction(RecordDict())
    raised, silent = (Message(Error(code=code, reason="no\ndisk"), reply_to=msg) for code in (100, 101))

    [entry] = noted(raised, raised, silent)

    assert entry["errors"] == ["no disk"] and entry["num_replies"] == 2 and entry["fields"] == []
    assert entry["bytes"] == 2 * len("no disk")


def test_a_hostile_reply_is_described_within_bounds() -> None:
    array = Array(np.zeros(2))
    forged = Array(dtype="x" * 10_000, shape=array.shape, stype=array.stype, data=array.data)
    content = RecordDict(
        {
            "a\nb": ArrayRecord({"c" * 10_000: forged}),
            "metrics": MetricRecord({"num-suppressed-classes": [1.0] * 4}),
            "config": ConfigRecord({str(number): b"xy" for number in range(3 * MAX_FIELDS)}),
        }
    )

    [entry] = noted(Message(content, reply_to=instruction(RecordDict())))

    assert len(json.dumps(entry)) < 200 * MAX_FIELDS and "\\n" not in json.dumps(entry)
    assert entry["fields_left_out"] == 2 * MAX_FIELDS + 2 and entry["classes_suppressed"] == 0
    assert entry["bytes"] == len(array.data) + 4 * 8 + 3 * MAX_FIELDS * 2


def test_errors_and_extents_of_a_hostile_site_are_bounded() -> None:
    msg = instruction(RecordDict(), "train")
    errors = [Message(Error(code=100, reason=f"error {number} {'x' * 1000}"), reply_to=msg) for number in range(1000)]
    array = Array(np.zeros(2))
    long = Array(dtype=array.dtype, shape=(1,) * 100_000, stype=array.stype, data=array.data)

    [entry] = noted(*errors, Message(RecordDict({"arrays": ArrayRecord({"a": long})}), reply_to=msg))

    assert len(entry["errors"]) == MAX_ERRORS and entry["errors_left_out"] == 1000 - MAX_ERRORS  # type: ignore[arg-type]
    assert len(json.dumps(entry)) < 10_000


@pytest.mark.parametrize("reason", ["a b" * 2**23, "\n" * 2**24, "é" * 2**24])
def test_a_reason_of_many_megabytes_takes_no_more_memory(reason: str) -> None:
    """Beside the message itself: 100 MB took 543 MB when all of it was cleaned before it was cut."""
    begin_task(RUN_ID)
    reply = Message(Error(code=100, reason=reason), reply_to=instruction(RecordDict()))
    tracemalloc.start()
    try:
        ledger = DisclosureLedger()
        own = unpack_reply(reply, 3, instruction(RecordDict()))
        ledger.note(own)
        with pytest.raises(RejectedReply):
            read_statistics_reply(own, request_for())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20 and len(own.error.reason) <= MAX_REASON


def test_no_value_is_in_it() -> None:
    request = request_for(StatisticsSpec(gram=True), wire_dtype="float64")
    features = torch.full((30, DIM), 1234.5678, dtype=torch.float64)
    reply = statistics_reply(instruction(request.to_content()), request.statistics(features, torch.arange(30) % 5))

    assert "1234" not in json.dumps(noted(reply))
