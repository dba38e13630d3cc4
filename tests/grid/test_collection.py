"""A collection that goes on from what an interrupted run had."""

from __future__ import annotations

import json

import pytest
import torch

from fedstats_app.base.files import to_json
from fedstats_app.grid.collection import Collection
from fedstats_app.statistics import StatisticsSpec
from tests.wire.replies import honest_reply, request_for

REQUEST = request_for(StatisticsSpec(gram=True))


def taken_up(present: set[int]) -> tuple[Collection, Collection]:
    before, after = Collection(REQUEST, True), Collection(REQUEST, True)
    before.fold(1, honest_reply(REQUEST, node=7))
    total, record = before.state()
    after.take_up(total, json.loads(to_json(record)), present)
    return before, after


def test_everything_comes_back() -> None:
    before, after = taken_up({7})
    assert after.outcomes == before.outcomes and after.digests == before.digests
    assert (after.num_merged, after.num_examples) == (before.num_merged, before.num_examples)
    assert after.total_wire_bytes == before.total_wire_bytes > 0
    assert after.wire_bytes(StatisticsSpec(gram=True)) == before.wire_bytes(StatisticsSpec(gram=True))
    outcome, _ = after.fold(1, honest_reply(REQUEST, node=7))
    assert outcome.outcome == "rejected" and "in the sum already" in outcome.reason


@pytest.mark.parametrize(("present", "expected"), [({8}, "known"), ({7, 8}, "merged")])
def test_a_node_that_came_back_with_another_id_is_not_counted_twice(present: set[int], expected: str) -> None:
    """Where the first one is still there, they are two that have the same."""
    before, after = taken_up(present)
    one = before.total.summed().class_sums.clone()
    outcome, _ = after.fold(1, honest_reply(REQUEST, node=8))
    assert outcome.outcome == expected
    assert torch.equal(after.total.summed().class_sums, one * (2 if expected == "merged" else 1))
