"""FedProto and FedAvg with fine-tuning, round by round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg

from fedstats_app.client import personal as client_personal
from fedstats_app.server.personal_approaches import mean_prototypes
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.strategies.fine_tuning import FineTuning
from fedstats_app.strategies.server_optimizers import EVERYBODY
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import alignment_loss, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start import random_head
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.personal import LocalPrototypes, PrototypeMetrics
from tests.support.personal_federation import NUM_CLASSES, NUM_CLIENTS, Federation, federation
from tests.support.personal_federation import personal_app as app_with

DIM = 32
THREE = "@rounds=3@batch-size=16"


def fresh_model(one: Federation) -> TunedModel:
    head = random_head(NUM_CLASSES, DIM, one.config.run.seed)
    return TunedModel(head, backbone=one.backbone.module, tune="full")


def own_prototypes(client: int, ids: list[int], rows: list[list[float]]) -> LocalPrototypes:
    return LocalPrototypes(torch.tensor(ids), torch.tensor(rows), PrototypeMetrics(num_examples=client))


def test_every_client_that_has_a_class_counts_alike() -> None:
    answers = {7: own_prototypes(1000, [0, 2], [[1.0, 2.0], [5.0, 5.0]]), 3: own_prototypes(1, [0], [[3.0, 0.0]])}
    prototypes = mean_prototypes(answers, 4, 2, 0.5)
    assert prototypes.means.tolist() == [[2.0, 1.0], [0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]
    assert prototypes.present.tolist() == [True, False, True, False]
    assert (prototypes.form, prototypes.weight) == ("mean-square", 0.5)


def test_fedproto_is_the_description_round_by_round(data: Path, tmp_path: Path) -> None:
    """Each client trains a model of its own, held near means that were averaged over the clients, for three rounds."""
    one = federation(data, tmp_path, hosts=2, personalise="fedproto", training=f"{THREE}@alignment-weight=2")
    result = one.run()["fedproto"]

    models = {client: fresh_model(one) for client in range(NUM_CLIENTS)}
    options, extra = one.session().request(1).options, None
    for server_round in (1, 2, 3):
        sums, counts = torch.zeros(NUM_CLASSES, DIM, dtype=torch.float64), torch.zeros(NUM_CLASSES, 1)
        for client, model in models.items():
            kept, _ = one.samples(client)
            train_locally(model, kept, options, key=(one.config.run.seed, client, server_round), extra_loss=extra)
            with torch.no_grad():
                features = model.features(kept.inputs(torch.arange(len(kept.labels))))
            stats = FeatureStatistics.from_features(features, kept.labels, NUM_CLASSES)
            sums += stats.class_means
            counts += stats.present.unsqueeze(1)
        extra = alignment_loss("mean-square", (sums / counts.clamp(min=1)).float(), counts.squeeze(1) > 0, 2.0)
    for client, model in models.items():
        right = evaluate(model, one.samples(client)[1]).confusion.matrix.diagonal().sum()
        assert result.num_correct[client] == int(right)
    assert not result.notes and not list(tmp_path.iterdir())  # models are forgotten after the last round


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_client_without_its_model_starts_again_and_says_so(data: Path, tmp_path: Path, how: str) -> None:
    def forgetful(msg: Message, context: Context, client_id: int | None) -> Message:
        if client_id == 1 and msg.content["config"]["server-round"] == 2:
            (file,) = tmp_path.glob("*-1/*.safetensors")
            file.unlink() if how == "lost" else file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
        return client_personal.prototypes(msg, context, client_id)

    app = app_with(prototypes=forgetful)
    result = federation(data, tmp_path, app=app, personalise="fedproto", training=THREE).run()["fedproto"]
    assert result.notes == ("round 2: client 1 had lost its model and started again",)
    assert set(result.num_test) == set(range(NUM_CLIENTS)) and not result.failures


def test_a_class_under_the_owners_floor_has_no_prototype(data: Path, tmp_path: Path) -> None:
    sent: dict[int, list[int]] = {}

    def watched(msg: Message, context: Context, client_id: int | None) -> Message:
        reply = client_personal.prototypes(msg, context, client_id)
        sent[int(client_id or 0)] = reply.content["prototypes"]["class-ids"].numpy().tolist()
        return reply

    app = app_with(prototypes=watched)
    one = federation(
        data, tmp_path, app=app, personalise="fedproto", training="@rounds=1@batch-size=16", min_class_count=8
    )
    one.run()
    for client in range(NUM_CLIENTS):
        counts = torch.bincount(one.samples(client)[0].labels, minlength=NUM_CLASSES)
        assert sent[client] == (counts >= 8).nonzero().squeeze(1).tolist()
        assert 0 < len(sent[client]) < int((counts > 0).sum())


def test_fedavg_is_flowers_and_everybody_goes_on_from_it(data: Path, tmp_path: Path) -> None:
    one = federation(data, tmp_path, personalise="fedavg-ft")
    results = one.run()

    rounds = FineTuning(FedAvg(**EVERYBODY), one.session().request(1), dict.fromkeys(range(NUM_CLIENTS)))  # type: ignore[arg-type]
    shared = rounds.start(one.grid, to_record(fresh_model(one).trained_state()), 2).arrays
    for client in range(NUM_CLIENTS):
        model, (kept, test) = fresh_model(one), one.samples(client)
        model.load_trained_state(to_tensors(shared))
        for approach in ("fedavg", "fedavg-ft"):
            right = evaluate(model, test).confusion.matrix.diagonal().sum()
            assert results[approach].num_correct[client] == int(right)
            train_locally(model, kept, one.session().request(2).options, key=(one.config.run.seed, client, 1))
