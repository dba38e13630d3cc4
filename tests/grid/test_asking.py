"""Asking clients: answers, failures and bytes."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedstats_app.grid.asking import Answers, array_bytes, ask, first_reasons, num_bytes, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.wire import RejectedReply, guard, per_client

QUESTION = RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(8, np.float32))}), "config": ConfigRecord({"a": 1})})


def grid(hosts: int) -> ClientGrid:
    """Return a grid of six clients that answer their number; client 2 fails and client 4 sends something else."""
    app = ClientApp(mods=[guard])

    @app.train("other")
    @per_client
    def answer(msg: Message, context: Context, client_id: int | None) -> Message:
        if client_id == 2:
            raise OSError("no disk")
        metrics = MetricRecord({"number": -1 if client_id == 4 else int(client_id or 0)})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    local = LocalGrid(app, [{} for _ in range(hosts)], shuffle_seed=3)
    return ClientGrid(local, {client: FIRST_NODE_ID + client % hosts for client in range(6)})


def number(reply: Message) -> int:
    if reply.has_error():
        raise RejectedReply(reply.error.reason)
    value = reply.content.metric_records["metrics"]["number"]
    if not isinstance(value, int) or value < 0:
        raise RejectedReply(f"number: must be at least 0, got {value}")
    return value


def test_answers_come_in_the_order_of_the_clients_and_failures_have_reasons() -> None:
    header = 128
    for hosts in (1, 4):
        answers = ask(grid(hosts), QUESTION, "train.other", [5, 4, 2, 1, 0], number)
        assert list(answers.by_client.items()) == [(0, 0), (1, 1), (5, 5)]
        assert answers.failures == {2: "OSError: no disk", 4: "number: must be at least 0, got -1"}
        assert answers.bytes_down == 5 * (8 * 4 + header)
        assert answers.bytes_up == 3 * 8  # what cannot be used is not counted


def test_settings_are_not_counted() -> None:
    assert num_bytes(RecordDict({"config": ConfigRecord({"a": "b" * 1000})})) == 0


def test_rounds_add_up() -> None:
    total: Answers[int] = Answers(bytes_down=1, bytes_up=2)
    total.add_bytes(Answers(bytes_down=10, bytes_up=20))
    assert (total.bytes_down, total.bytes_up) == (11, 22)


def test_arrays_are_counted_with_their_headers_and_metrics_beside_them() -> None:
    content = RecordDict({**QUESTION, "metrics": MetricRecord({"a": 1, "b": 0.5})})
    assert (array_bytes(content), num_bytes(content)) == (8 * 4 + 128, 8 * 4 + 128 + 16)


def test_who_was_not_asked_is_not_read() -> None:
    clients, failures = grid(1), dict[int, str]()
    replies = clients.send_and_receive(
        [Message(QUESTION, dst_node_id=one, message_type="train.other") for one in (0, 1)]
    )
    assert [(client, answer) for client, _, answer in usable(replies, number, failures, {1})] == [(1, 1)]
    assert failures == {0: "it was not asked"}


def test_of_many_reasons_the_first_are_shown() -> None:
    assert first_reasons([]) == "" and first_reasons(["a", "b", "c"]) == "a; b; c"
    assert first_reasons([*"abcde"]) == "a; b; c; and 2 more"
    assert Answers(failures={3: "no disk"}).reasons() == "site 3: no disk"
