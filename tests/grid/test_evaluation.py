"""Heads scored where the samples are."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.evaluation import evaluate_on_clients
from fedstats_app.heads import CalibrationSums, ConfusionMatrix
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.wire import evaluation_reply, guard, per_client, read_evaluation_request
from tests.support.clients import NUM_CLASSES, Clients, strategy_for
from tests.support.local_grid import FIRST_NODE_ID, LocalGrid

CLIENTS = Clients(9)


def scoring_app(hostile: int | None = None) -> ClientApp:
    app = CLIENTS.app()

    @app.evaluate("heads")
    @per_client
    def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
        request, heads = read_evaluation_request(msg)
        features, labels = CLIENTS.part(int(client_id or 0))
        logits = {
            name: head.logits(request.specs[index].feature_map(features)) for name, (index, head) in heads.items()
        }
        reply = evaluation_reply(
            msg,
            {
                name: ConfusionMatrix.from_predictions(labels, scores.argmax(dim=1), NUM_CLASSES)
                for name, scores in logits.items()
            },
            {name: CalibrationSums.from_logits(scores, labels) for name, scores in logits.items()},
        )
        if client_id == hostile:
            cells = torch.tensor([[0, 0, 10**12]]).numpy()
            reply.content["confusion.fedcgs"] = ArrayRecord({"cells": Array(cells)})
        return reply

    return app


def grid(app: ClientApp) -> ClientGrid:
    local = LocalGrid(app, [{"partition-id": host, "num-partitions": 2} for host in range(2)], shuffle_seed=1)
    return ClientGrid(local, {client: FIRST_NODE_ID + client % 2 for client in range(9)})


def scores(clients: ClientGrid, strategy: StatisticsStrategy) -> Any:
    asked = [outcome.client for outcome in strategy.outcomes if outcome.in_heads]
    return evaluate_on_clients(clients, strategy.request, strategy.indexed_heads, asked)


@pytest.mark.parametrize("name", ["one pass", "one pass, two maps"])
def test_counts_of_the_clients_are_those_of_all_samples(name: str) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy, clients = strategy_for(name), grid(scoring_app())
    strategy.start(clients)

    confusion, calibration, failures = scores(clients, strategy)

    assert set(confusion) == set(calibration) == set(strategy.heads) and not failures
    for method, head in strategy.heads.items():
        features = strategy.methods()[method].specification.feature_map(CLIENTS.features)
        expected = ConfusionMatrix.from_predictions(CLIENTS.labels, head.predict(features), NUM_CLASSES)
        assert torch.equal(confusion[method].matrix, expected.matrix)
        central = CalibrationSums.from_logits(head.logits(features), CLIENTS.labels)
        # Feature maps compute in float32, whose rounding depends on how many samples come at once.
        torch.testing.assert_close(calibration[method].losses, central.losses, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(calibration[method].gaps, central.gaps, rtol=1e-5, atol=1e-4)
        assert calibration[method].num_examples == central.num_examples


def test_who_was_not_merged_is_not_asked_and_who_lies_is_left_out() -> None:
    clients = grid(scoring_app(hostile=4))
    strategy = strategy_for("one pass")
    broken = grid(Clients(9, broken={2: ValueError("no data")}).app())
    strategy.start(broken)

    confusion, calibration, failures = scores(clients, strategy)

    expected = CLIENTS.statistics(StatisticsSpec(), without={2, 4}).rows.num_examples
    assert {matrix.num_examples for matrix in confusion.values()} == {expected}
    assert {sums.num_examples for sums in calibration.values()} == {expected}
    assert set(failures) == {4} and failures[4].startswith("cells: counts must lie in")


def test_guarded_failures_are_left_out() -> None:
    failing = ClientApp(mods=[guard])
    strategy = strategy_for("fedncm")
    strategy.start(CLIENTS.client_grid(2))

    confusion, calibration, failures = scores(grid(failing), strategy)
    assert confusion["fedncm"].num_examples == 0 and calibration["fedncm"].fit() is None
    assert len(failures) == strategy.collection.num_merged
