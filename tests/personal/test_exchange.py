"""Asking clients about personal models: answers, failures and bytes."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.personal.exchange import Answers, ask, num_bytes, personal_result, scored
from fedstats_app.wire import RejectedReply, guard, per_client
from fedstats_app.wire.personal import PersonalMetrics
from tests.support.local_grid import FIRST_NODE_ID, LocalGrid

QUESTION = RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(8, np.float32))}), "config": ConfigRecord({"a": 1})})


def grid(hosts: int) -> ClientGrid:
    """Return a grid of six clients that answer their number; client 2 fails and client 4 sends something else."""
    app = ClientApp(mods=[guard])

    @app.train("personalise")
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
        answers = ask(grid(hosts), QUESTION, "train.personalise", [5, 4, 2, 1, 0], number)
        assert list(answers.of.items()) == [(0, 0), (1, 1), (5, 5)]
        assert answers.failures == {2: "OSError: no disk", 4: "number: must be at least 0, got -1"}
        assert answers.bytes_down == 5 * (8 * 4 + header)
        assert answers.bytes_up == 3 * 8  # what cannot be used is not counted


def test_settings_are_not_counted() -> None:
    assert num_bytes(RecordDict({"config": ConfigRecord({"a": "b" * 1000})})) == 0


def test_rounds_add_up() -> None:
    total: Answers[int] = Answers(bytes_down=1, bytes_up=2)
    total.add_bytes(Answers(bytes_down=10, bytes_up=20))
    assert (total.bytes_down, total.bytes_up) == (11, 22)


def test_clients_without_test_samples_have_no_accuracy_but_cost() -> None:
    metrics = {0: PersonalMetrics(10, 4, 1, 3, 30), 1: PersonalMetrics(20, 0, 0, 0, 60)}
    answers = Answers(metrics, {2: "no disk"}, 5, 6)
    result = personal_result("x", answers, 0.0)
    assert (result.num_correct, result.num_test, result.forward_passes) == ({0: 3}, {0: 4}, 90)
    assert (result.bytes_down, result.bytes_up, result.failures) == (5, 6, {2: "no disk"})
    before = personal_result("x", answers, 0.0, before=True)
    assert (before.num_correct, before.forward_passes) == ({0: 1}, 0)
    assert scored({0: 1, 1: 0}, {0: 4, 1: 0}) == ({0: 1}, {0: 4})
