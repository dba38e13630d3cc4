"""Personal models side by side, over real handlers: what every approach does, and what happens where one fails."""

import math
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client import personal as client_personal
from fedstats_app.data.clients import training_set
from fedstats_app.heads import LinearHead, solve_gaussian, solve_ridge
from fedstats_app.heads.fedroot import solve_completed
from fedstats_app.heads.personal import choose_mixing, personal_head
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.server import personalisation as personal
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import alignment_loss, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.personal_options import APPROACHES as APPROACH_NAMES
from fedstats_app.training.start import random_head
from tests.support.personal_federation import NUM_CLASSES, NUM_CLIENTS, Federation, Handler, federation
from tests.support.personal_federation import personal_app as app_with

DIM = 32
Everything = tuple[Federation, dict[str, PersonalResult]]
ALL = {
    *("local-only", "one-shot"),
    *("closed-form-fedcgs", "closed-form-fed3r", "closed-form-fedroot"),
    *(f"global-{method}" for method in ("fedncm", "fed3r", "fedcof", "fedcgs", "fedroot")),
}


@pytest.fixture(scope="module")
def everything(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    one = federation(data, tmp_path_factory.mktemp("state"), hosts=2, personalise="all", wire_dtype="float64")
    return one, one.run()


def test_every_approach_tests_every_client_on_what_it_kept(everything: Everything) -> None:
    one, results = everything
    assert set(results) == ALL
    sizes = {client: len(one.split(client)[1]) for client in range(NUM_CLIENTS)}
    for name, result in results.items():
        assert result.approach == name
        assert result.num_test == sizes and not result.failures, name
        assert all(0.0 <= accuracy <= 1.0 for accuracy in result.accuracies.values())


def test_costs(everything: Everything) -> None:
    one, results = everything
    examples = sum(len(one.split(client)[0]) for client in range(NUM_CLIENTS))
    passes = {name: result.forward_passes for name, result in results.items()}
    epochs = one.config.personal.epochs
    assert passes["local-only"] == passes["one-shot"] == 3 * epochs * examples
    assert passes["closed-form-fedcgs"] == examples and passes["global-fedcgs"] == 0

    header = 128
    prototypes = NUM_CLASSES * (4 * DIM + 1) + 2 * header
    head = 4 * NUM_CLASSES * (DIM + 1) + 2 * header
    assert results["local-only"].bytes_down == 0
    assert results["one-shot"].bytes_down == NUM_CLIENTS * (prototypes + head)
    triangle = DIM * (DIM + 1) // 2
    statistics = 8 * NUM_CLASSES + 8 * NUM_CLASSES * DIM + 8 * triangle + 3 * header
    assert results["closed-form-fed3r"].bytes_down == NUM_CLIENTS * statistics


def test_global_heads_are_scored_client_by_client(everything: Everything) -> None:
    one, results = everything
    reader = FeatureReader(one.backbone)
    dataset = training_set(one.config.data)
    for client in range(NUM_CLIENTS):
        _, test = one.split(client)
        features = torch.cat([block for block, _ in reader.blocks(dataset, test)])
        for method, head in one.strategy.heads.items():
            correct = int((head.predict(features).numpy() == dataset.labels[test]).sum())
            assert results[f"global-{method}"].num_correct[client] == correct


def trained_alone(one: Federation, client: int, head: LinearHead, *, aligned: bool) -> int:
    """Return how many test samples are right after training without messages."""
    stats = one.strategy.collection.total.summed()
    kept, test = one.samples(client)
    model = TunedModel(head, backbone=one.backbone.module, tune="full")
    options = one.session().request.options
    extra = alignment_loss(stats.class_means.float(), stats.present, 1.0) if aligned else None
    train_locally(model, kept, options, key=(one.config.run.seed, client, 1), extra_loss=extra)
    return int(evaluate(model, test).confusion.matrix.diagonal().sum())


@pytest.mark.parametrize(("approach", "aligned"), [("local-only", False), ("one-shot", True)])
def test_training_alone_is_what_it_says(everything: Everything, approach: str, aligned: bool) -> None:
    one, results = everything
    head = one.strategy.heads["fedcgs"] if aligned else random_head(NUM_CLASSES, DIM, one.config.run.seed)
    for client in range(NUM_CLIENTS):
        assert results[approach].num_correct[client] == trained_alone(one, client, head, aligned=aligned)


def test_the_closed_form_is_solved_from_the_clients_own_statistics(everything: Everything) -> None:
    one, results = everything
    dataset, reader = training_set(one.config.data), FeatureReader(one.backbone)
    ridge, of_root = (one.strategy.heads[name].report.parameters["ridge_lambda"] for name in ("fed3r", "fedroot"))
    shrinkage = one.strategy.heads["fedcgs"].report.parameters["shrinkage"]
    solvers = {
        "fed3r": lambda stats, ratio: solve_ridge(stats, ridge_lambda=ridge * ratio),
        "fedcgs": lambda stats, ratio: solve_gaussian(stats, covariance="within", shrinkage=shrinkage),
        "fedroot": lambda stats, ratio: solve_completed(stats, ridge_lambda=of_root * ratio),
    }
    total = one.strategy.collection.total
    exact, completed = total.summed(), one.strategy.methods()["fedroot"].inputs(total)
    stats = {"fed3r": exact, "fedcgs": exact, "fedroot": completed}
    for client in range(NUM_CLIENTS):
        (features, labels), (test_features, test_labels) = (
            (torch.cat([block for block, _ in reader.blocks(dataset, part)]), torch.from_numpy(dataset.labels[part]))
            for part in one.split(client)
        )
        own = FeatureStatistics.from_features(features, labels, NUM_CLASSES)
        for method, solver in solvers.items():
            key = (one.config.run.seed, client, client_personal.VALIDATION_STREAM)
            everywhere = torch.ones(len(labels), dtype=torch.bool)
            mixing = choose_mixing(stats[method], features, labels, solver, in_global=everywhere, key=key)
            result = results[f"closed-form-{method}"]
            assert result.mixing[client] == mixing
            predicted = personal_head(stats[method], own, mixing, solver).predict(test_features)
            assert result.num_correct[client] == int((predicted == test_labels).sum())
    assert len({*results["closed-form-fed3r"].mixing.values(), *results["closed-form-fedcgs"].mixing.values()}) > 1


def diverging(handler: Handler, client: int) -> Handler:
    """Return a handler with which one client trains at a learning rate that leads to NaN."""

    def handle(msg: Message, context: Context, client_id: int | None) -> Message:
        config = msg.content.config_records["config"]
        rate = config["learning-rate"]
        config["learning-rate"] = 1e30 if client_id == client else rate
        try:
            return handler(msg, context, client_id)
        finally:
            config["learning-rate"] = rate

    return handle


def test_a_client_that_diverges_is_named_and_harms_nobody(data: Path, tmp_path: Path, everything: Everything) -> None:
    _, healthy = everything
    app = app_with(personalise=diverging(client_personal.personalise, 3))
    results = federation(
        data, tmp_path, hosts=2, app=app, personalise="local-only,one-shot", method="fedcgs", wire_dtype="float64"
    ).run()
    for name in ("local-only", "one-shot"):
        assert set(results[name].failures) == {3} and "Diverged" in results[name].failures[3]
        expected = {client: number for client, number in healthy[name].num_correct.items() if client != 3}
        assert results[name].num_correct == expected
    assert all(math.isfinite(result.mean) for result in results.values())


def test_a_lie_about_right_answers_is_refused(data: Path, tmp_path: Path) -> None:
    def lying(msg: Message, context: Context, client_id: int | None) -> Message:
        reply = client_personal.personalise(msg, context, client_id)
        if client_id == 2:
            reply.content.metric_records["metrics"]["num-correct"] = 10**6
        return reply

    (result,) = federation(data, tmp_path, app=app_with(personalise=lying), personalise="local-only").run().values()
    assert set(result.num_test) == {0, 1, 3, 4}
    assert result.failures[2].startswith("num-correct: must be a whole number from 0 to ")


def test_nothing_by_class_and_no_model_leaves_a_client(data: Path, tmp_path: Path) -> None:
    sent: dict[str, set[str]] = {}

    def watched(name: str) -> Handler:
        def handle(msg: Message, context: Context, client_id: int | None) -> Message:
            reply = getattr(client_personal, name)(msg, context, client_id)
            sent.setdefault(name, set()).update(
                f"{record}/{key}" for record in reply.content for key in reply.content[record]
            )
            return reply

        return handle

    names = ("personalise", "personal_heads", "evaluate_personal")
    app = app_with(**{name: watched(name) for name in names})
    federation(data, tmp_path, app=app, personalise="all", method="fed3r").run()
    common = {"num-examples", "num-test", "num-correct", "forward-passes", "seconds"}
    assert sent["personalise"] == {f"metrics/{key}" for key in common}
    assert sent["personal_heads"] == {f"metrics/{key}" for key in common | {"mixing"}}
    assert sent["evaluate_personal"] == {"metrics/num-test", "metrics/correct.fed3r"}
    assert tuple(personal.APPROACHES) == APPROACH_NAMES
