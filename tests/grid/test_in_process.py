"""The grid of one process: nothing is shared, states last, order and errors are Flower's."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedstats_app.grid.in_process import FIRST_NODE_ID, App, InProcessGrid, copied_content, task


@pytest.fixture(autouse=True)
def a_run() -> Iterator[None]:
    with task(3):
        yield
        while made:
            made.pop().close()


made: list[InProcessGrid] = []


def grid(app: App, nodes: int = 2) -> InProcessGrid:
    configs = [{"partition-id": node, "num-partitions": nodes} for node in range(nodes)]
    made.append(InProcessGrid(app, configs, 3, {"seed": 0}))
    return made[-1]


def content() -> RecordDict:
    records = {
        "arrays": ArrayRecord({"a": Array(np.arange(6.0))}),
        "metrics": MetricRecord({"loss": 0.5, "many": [1, 2]}),
        "config": ConfigRecord({"names": ["x", "y"], "flag": True, "bytes": b"\x00"}),
    }
    return RecordDict(records)


def ask(
    one: InProcessGrid, *, node: int = 0, message_type: str = "query.x", records: RecordDict | None = None
) -> Message:
    (reply,) = one.send_and_receive([Message(records or content(), FIRST_NODE_ID + node, message_type)])
    return reply


def test_a_copy_is_equal_in_order_and_shares_nothing() -> None:
    sent = content()
    made = copied_content(sent)
    assert list(made) == list(sent) and made == sent
    assert made["config"]["names"] is not sent["config"]["names"]
    assert made["arrays"]["a"].data is not sent["arrays"]["a"].data


def test_what_a_client_does_to_a_message_stays_with_it() -> None:
    def spoils(msg: Message, context: Context) -> Message:
        over = torch.from_numpy(np.frombuffer(msg.content["arrays"]["a"].data, np.uint8))
        over[-8:] = 255  # the bytes themselves: what a tensor made over them could do
        msg.content["config"]["names"].append("z")
        msg.content["metrics"]["many"][0] = 9
        context.run_config["seed"] = 9
        context.node_config["partition-id"] = 9
        kept.append(msg.content)
        return Message(msg.content, reply_to=msg)

    kept: list[RecordDict] = []
    one, sent = grid(spoils), content()
    reply = ask(one, records=sent)
    assert sent == content() and reply.content["config"]["names"] == ["x", "y", "z"]
    kept[0]["config"]["names"].clear()
    assert reply.content["config"]["names"] == ["x", "y", "z"]
    ask(one)
    assert kept[1]["config"]["names"] == ["x", "y", "z"]


def test_each_node_s_state_lasts_and_what_fails_leaves_it() -> None:
    def counts(msg: Message, context: Context) -> Message:
        number = int(context.state["n"]["n"]) + 1 if "n" in context.state else 1
        context.state["n"] = MetricRecord({"n": number})
        if msg.metadata.message_type == "query.fails":
            raise KeyError("lost")
        told = {"n": number, **{key: int(value) for key, value in context.node_config.items()}}
        return Message(RecordDict({"told": MetricRecord(told)}), reply_to=msg)

    one = grid(counts)
    assert ask(one, node=0).content["told"]["n"] == 1
    error = ask(one, node=0, message_type="query.fails").error
    assert error.code == 2 and error.reason == "<class 'KeyError'>:<''lost''>"
    assert dict(ask(one, node=0).content["told"]) == {"n": 2, "partition-id": 0, "num-partitions": 2}
    assert dict(ask(one, node=1).content["told"]) == {"n": 1, "partition-id": 1, "num-partitions": 2}


def test_replies_name_their_request_and_come_once_in_the_order_of_the_messages() -> None:
    one = grid(lambda msg, _: Message(msg.content, reply_to=msg))
    messages = [Message(RecordDict(), FIRST_NODE_ID + node % 2, "train") for node in range(5)]
    ids = one.push_messages([*messages, Message(RecordDict(), 5, "train")])
    assert ids == [msg.metadata.message_id for msg in messages]  # nobody is node 5
    replies: list[Message] = []
    while new := list(one.pull_messages(ids)):
        replies += new
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.metadata.src_node_id for reply in replies] == [FIRST_NODE_ID + node % 2 for node in range(5)]
    assert len({reply.metadata.message_id for reply in replies} | set(ids)) == 10


def test_nothing_is_asked_after_the_time_is_over() -> None:
    assert grid(lambda msg, _: msg).send_and_receive([Message(RecordDict(), FIRST_NODE_ID, "train")], timeout=0.0) == []


def test_clients_answer_while_the_server_does_something_else() -> None:
    answered = threading.Semaphore(0)

    def answers(msg: Message, _: Context) -> Message:
        answered.release()
        return Message(msg.content, reply_to=msg)

    one = grid(answers)
    ids = one.push_messages([Message(RecordDict(), FIRST_NODE_ID, "train") for _ in range(3)])
    assert all(answered.acquire(timeout=60) for _ in ids)
    replies: list[Message] = []
    while new := list(one.pull_messages(ids)):
        replies += new
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids


def test_they_compute_with_as_many_threads_of_torch_as_the_server() -> None:
    def tells(msg: Message, _: Context) -> Message:
        return Message(RecordDict({"told": MetricRecord({"n": torch.get_num_threads()})}), reply_to=msg)

    torch.set_num_threads(3)
    assert ask(grid(tells)).content["told"]["n"] == 3


def test_what_ends_a_client_ends_the_server_after_the_replies_before_it() -> None:
    def interrupted(msg: Message, _: Context) -> Message:
        if msg.metadata.message_type == "train":
            raise KeyboardInterrupt
        return Message(msg.content, reply_to=msg)

    one = grid(interrupted)
    ids = one.push_messages([Message(RecordDict(), FIRST_NODE_ID, kind) for kind in ("query", "train", "query")])
    assert [reply.metadata.reply_to_message_id for reply in one.pull_messages(ids[:1])] == ids[:1]
    with pytest.raises(KeyboardInterrupt):
        list(one.pull_messages(ids[1:]))


def test_closing_ends_what_is_under_way_and_begins_with_nothing_else() -> None:
    begun, ended = threading.Event(), []

    def endless(msg: Message, _: Context) -> Message:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.append(msg.metadata.message_type)

    one = grid(endless)
    one.push_messages([Message(RecordDict(), FIRST_NODE_ID, kind) for kind in ("train.a", "train.b")])
    assert begun.wait(60)
    one.close()
    assert ended == ["train.a"]
    one.close()
