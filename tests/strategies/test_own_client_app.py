"""Somebody else's ClientApp, of ten lines and without our mods, under every strategy and Flower's plain Grid."""

from __future__ import annotations

import logging

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.wire import read_statistics_request, statistics_reply
from tests.support.clients import NUM_CLASSES, STRATEGIES, Clients, strategy_for
from tests.support.local_grid import FIRST_NODE_ID, LocalGrid

CLIENTS = Clients(5)
own_app = ClientApp()


@own_app.query("statistics")
def own_statistics(msg: Message, context: Context) -> Message:
    request = read_statistics_request(msg)
    features, labels = CLIENTS.part(int(context.node_config["site"]))
    return statistics_reply(msg, request.statistics(features, labels))


def own_grid(app: ClientApp = own_app) -> LocalGrid:
    return LocalGrid(app, [{"site": site} for site in range(5)], shuffle_seed=2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_is_served_as_our_own(name: str) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    ours, theirs = strategy_for(name), strategy_for(name)
    ours.start(CLIENTS.client_grid())

    result = theirs.start(own_grid())

    assert {outcome.outcome for outcome in theirs.outcomes} == {"merged"} and len(theirs.outcomes) == 5
    for method, head in theirs.heads.items():
        assert torch.equal(head.weight, ours.heads[method].weight)
        prefix = f"{method}." if len(theirs.heads) > 1 else ""
        assert torch.equal(torch.from_numpy(result.arrays[f"{prefix}weight"].numpy()), head.weight)


def test_statistics_made_without_the_request_are_served_too() -> None:
    app = ClientApp()

    @app.query("statistics")
    def statistics(msg: Message, context: Context) -> Message:
        features, labels = CLIENTS.part(int(context.node_config["site"]))
        if context.node_config["site"] == 0:
            return statistics_reply(msg, FeatureStatistics.from_features(features, labels, NUM_CLASSES))
        return statistics_reply(msg, ClassMeanRows.from_features(features, labels, NUM_CLASSES))

    strategy, expected = strategy_for("fedcof"), strategy_for("fedcof")
    expected.start(own_grid())

    strategy.start(own_grid(app))

    assert torch.equal(strategy.head.weight, expected.head.weight)


def test_one_of_them_that_answers_nothing_we_know_is_refused_by_name() -> None:
    app = ClientApp()

    @app.query("statistics")
    def statistics(msg: Message, context: Context) -> Message:
        if context.node_config["site"] == 3:
            return Message(msg.content, reply_to=msg)
        return own_statistics(msg, context)

    strategy = strategy_for("fedncm")
    strategy.start(own_grid(app))

    refused = [outcome for outcome in strategy.outcomes if outcome.outcome != "merged"]
    assert [(outcome.client, outcome.outcome) for outcome in refused] == [(FIRST_NODE_ID + 3, "rejected")]
    assert "missing ['metrics', 'statistics-0'], unexpected ['request']" in refused[0].reason
