"""Heads scored where the samples are."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.data.clients import split_holdout
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.evaluation import Scores, evaluate_on_clients, most_held_out, training_losses
from fedstats_app.heads import ClientScores, HeadScores
from fedstats_app.heads.calibration import TEMPERATURES
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.evaluation import losses_by_temperature
from fedstats_app.training.model import TrainingRequest, TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import best_temperature
from fedstats_app.wire import guard, per_client
from fedstats_app.wire.evaluation import evaluation_reply, read_evaluation_request
from fedstats_app.wire.training import losses_reply, nothing_to_train_reply, read_training_task
from tests.data.conftest import make_dataset
from tests.support.clients import NUM_CLASSES, Clients, strategy_for

CLIENTS = Clients(9)
# As many times its samples a liar claims, in its statistics too.
TIMES = 100


def scoring_app(hostile: int | None = None, liar: int | None = None) -> ClientApp:
    app = CLIENTS.app()

    @app.evaluate("heads")
    @per_client
    def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
        _, heads, _ = read_evaluation_request(msg)
        features, labels = CLIENTS.part(int(client_id or 0))
        if client_id == liar:
            features, labels = features.repeat(TIMES, 1), labels.repeat(TIMES)
        logits = {name: head.logits(features) for name, head in heads.items()}
        found = [HeadScores.zeros(NUM_CLASSES).count(one, labels, one.argmax(dim=1)) for one in logits.values()]
        vote = 0 if client_id == liar else 50 + int(client_id or 0)
        sent = dict(zip(logits, [ClientScores(one.confusion, one.margins.filled, vote) for one in found], strict=True))
        reply = evaluation_reply(msg, sent)
        if client_id == hostile:
            reply.content["confusion.fedcgs"] = ArrayRecord({"cells": Array(torch.tensor([[0, 0, 10**12]]).numpy())})
        return reply

    return app


def grid(app: ClientApp) -> ClientGrid:
    local = LocalGrid(app, [{"partition-id": host, "num-partitions": 2} for host in range(2)], shuffle_seed=1)
    return ClientGrid(local, {client: FIRST_NODE_ID + client % 2 for client in range(9)})


def scores(clients: ClientGrid, strategy: StatisticsStrategy) -> Scores:
    asked = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.in_heads}
    return evaluate_on_clients(clients, strategy.request, strategy.heads, asked)


def test_counts_of_the_clients_are_those_of_all_samples() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy, clients = strategy_for("one pass"), grid(scoring_app())
    strategy.start(clients)

    found = scores(clients, strategy)

    assert set(found.heads) == set(found.accuracies) == set(strategy.heads) and not found.failures
    for method, head in strategy.heads.items():
        of_all, logits = found.heads[method], head.logits(CLIENTS.features)
        central = HeadScores.zeros(NUM_CLASSES).count(logits, CLIENTS.labels, logits.argmax(dim=1))
        assert torch.equal(of_all.confusion.matrix, central.confusion.matrix)
        areas = (one.margins.per_class_auroc for one in (of_all, central))
        torch.testing.assert_close(*areas, rtol=0, atol=1e-3, equal_nan=True)
        for client, accuracy in found.accuracies[method].items():
            features, labels = CLIENTS.part(client)
            right = head.logits(features).argmax(dim=1) == labels
            assert accuracy == pytest.approx(float(right.double().mean()))
        assert int(found.right[method].sum()) == central.confusion.num_correct
        assert set(found.accuracies[method]) == {client for client in range(9) if len(CLIENTS.part(client)[1])}


def test_who_was_not_merged_is_not_asked_and_who_lies_is_left_out() -> None:
    clients = grid(scoring_app(hostile=4))
    strategy = strategy_for("one pass")
    strategy.start(grid(Clients(9, broken={2: ValueError("no data")}).app()))

    found = scores(clients, strategy)

    expected = CLIENTS.statistics(StatisticsSpec(), without={2, 4}).rows.num_examples
    for of_all in found.heads.values():
        assert of_all.confusion.num_examples == expected and int(of_all.margins.positives.sum()) == expected
    assert set(found.failures) == {4} and found.failures[4].startswith("cells: counts must lie in")
    assert not {2, 4} & set(found.accuracies["fedcgs"])


def test_cells_of_clients_and_classes_are_the_same_for_all_methods() -> None:
    clients, strategy = grid(scoring_app()), strategy_for("one pass")
    strategy.start(clients)

    found = scores(clients, strategy)

    held = [CLIENTS.part(client)[1].unique(return_counts=True)[1].tolist() for client in sorted(found.examples)]
    sizes = torch.tensor([size for of_client in held for size in (*of_client, 0)])  # the last: classes without a name
    for method, right in found.right.items():
        assert bool((right <= sizes).all()), method
    names = list(found.right)
    assert any(not torch.equal(found.right[names[0]], found.right[name]) for name in names[1:])


@pytest.mark.parametrize("liar", range(9))
def test_no_client_chooses_the_temperature(liar: int) -> None:
    """One that claims most of all samples, with honest means, made every head's temperature 0.001 or 1,000."""
    strategy = strategy_for("fedncm")
    strategy.start(grid(CLIENTS.app()))
    claimed = {outcome.client: outcome.num_examples for outcome in strategy.outcomes}
    claimed[liar] *= TIMES

    found = evaluate_on_clients(grid(scoring_app(liar=liar)), strategy.request, strategy.heads, claimed)

    fitted = found.calibrations["fedncm"]
    assert fitted is not None and TEMPERATURES[50] <= fitted.temperature <= TEMPERATURES[58]
    sizes = {client: len(CLIENTS.part(client)[1]) * (TIMES if client == liar else 1) for client in range(9)}
    most = max(sizes, key=sizes.__getitem__)
    assert found.largest == (most, sizes[most] / sum(sizes.values()))


def test_guarded_failures_are_left_out() -> None:
    failing = ClientApp(mods=[guard])
    strategy = strategy_for("fedncm")
    strategy.start(CLIENTS.client_grid(2))

    found = scores(grid(failing), strategy)
    assert found.heads["fedncm"].confusion.num_examples == 0 and found.calibrations == {"fedncm": None}
    assert not found.accuracies["fedncm"] and len(found.failures) == strategy.collection.num_merged


def test_who_claims_more_samples_than_its_statistics_allow_is_left_out() -> None:
    clients = grid(scoring_app())
    strategy = strategy_for("fedncm", holdout=0.01)
    strategy.start(clients)
    # Here clients evaluate on all their samples, where they may keep one in a hundred.
    sizes = {outcome.client: outcome.num_examples for outcome in strategy.outcomes}
    lying = {client for client, number in sizes.items() if number > most_held_out(number, 0.01)}

    found = evaluate_on_clients(clients, strategy.request, strategy.heads, sizes)

    assert 1 <= len(lying) < 9 and set(found.failures) == lying
    for client, reason in found.failures.items():
        assert reason == f"it claims {sizes[client]} samples to evaluate on, its statistics allow 21"
    counted = sum(number for client, number in sizes.items() if client not in lying)
    assert found.heads["fedncm"].confusion.num_examples == counted


@pytest.mark.parametrize("holdout", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("number", [1, 2, 3, 10, 101, 12_345])
def test_no_honest_client_keeps_more_than_is_allowed(holdout: float, number: int) -> None:
    kept, held_out = split_holdout(make_dataset(np.zeros(number, dtype=int)), np.arange(number), holdout, 0, 3)

    assert len(held_out) <= most_held_out(len(kept), holdout)
    # Also where every tenth sample in the statistics cannot be read, or is of a class under a floor.
    assert len(held_out) <= most_held_out(len(kept) - len(kept) // 10, holdout)


def losing_app(liar: int | None = None) -> ClientApp:
    app = CLIENTS.app()

    @app.train("losses")
    @per_client
    def losses(msg: Message, context: Context, client_id: int | None) -> Message:
        tensors = read_training_task(msg).trained
        features, labels = CLIENTS.part(int(client_id or 0))
        if not len(labels):
            return nothing_to_train_reply(msg)
        model = TunedModel((tensors["head.weight"], tensors["head.bias"]), tune="probe")
        said = losses_by_temperature(model, TensorSamples(features.float(), labels), 64)
        if client_id == liar:
            return losses_reply(msg, [1e9 * (1 + k) for k in range(len(said))], TIMES * len(labels))
        return losses_reply(msg, said, len(labels))

    return app


def test_losses_of_the_clients_are_those_of_all_samples_and_one_client_does_not_choose_the_temperature() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = strategy_for("fed3r")
    strategy.start(grid(CLIENTS.app()))
    head = strategy.heads["fed3r"]
    clients = {outcome.client: outcome.num_examples for outcome in strategy.outcomes}
    request = TrainingRequest(strategy.num_classes, tune="probe")
    everything = TensorSamples(CLIENTS.features.float(), CLIENTS.labels)
    central = losses_by_temperature(TunedModel(head, tune="probe"), everything, 4096)

    losses, answers = training_losses(grid(losing_app()), request, head, clients, max_share=1.0)

    assert losses == pytest.approx(list(central), rel=1e-6) and not answers.failures
    assert 8 * 33 * 8 < answers.bytes_up < 9 * (33 * 8 + 200)
    losses, answers = training_losses(grid(losing_app(liar=5)), request, head, {**clients, 5: TIMES * clients[5]})
    assert list(answers.failures) == [5] and "the others agree" in answers.failures[5]
    assert best_temperature(losses) == pytest.approx(best_temperature(central), rel=0.5)
    with pytest.raises(TooFewClients, match="0 of 9 sites measured losses by temperature, 2 are needed"):
        training_losses(grid(CLIENTS.app()), request, head, clients, min_clients=2)
