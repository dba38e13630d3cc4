"""Requests to train whose reply is a single sample are refused by the node; honest ones are answered."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message

from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.training.limits import NO_LIMITS, RequestLimits
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TrainingRequest, TunedModel
from fedstats_app.training.samples import TensorSamples, batch_order
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.mezo import MezoRequest
from fedstats_app.wire.training import training_content
from tests.support.compare import relative_difference
from tests.support.hostile_server import CLASSES, Victim

DIM = 32
PRESETS = sorted((Path(__file__).parents[2] / "conf").glob("*.toml"))
START_BIAS = {"head.bias": torch.zeros(2)}
START = {"head.weight": torch.zeros(2, DIM), **START_BIAS}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    return Victim.of(tmp_path_factory.mktemp("victim"), images=20)


def train(victim: Victim, options: LocalOptions) -> Message:
    request = TrainingRequest(2, options=options, class_names=CLASSES)
    content = training_content(request, to_record(START), ArrayRecord())
    if options.proximal_mu:
        content["config"]["proximal-mu"] = options.proximal_mu
    return victim.ask(content, "train")


def test_one_sample_a_step_and_a_decay_that_forgets_all_others_gave_the_last_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learning rate 1 and weight decay 1 the head is the last batch's gradient: (p - y) times a feature."""
    forgetful = LocalOptions(batch_size=1, learning_rate=1.0, weight_decay=1.0)
    unprotected = Victim.of(tmp_path, images=20)
    split = unprotected.site.split(CLASSES, holdout=0.0, seed=0)
    samples = unprotected.samples(replace(split, held_out=split.kept))
    model = TunedModel((START["head.weight"], START["head.bias"]), tune="probe")
    train_locally(model, samples, forgetful, key=(0, 0, 1))
    last = samples.inputs(batch_order(len(samples.labels), 1, (0, 0, 1), 0)[-1])[0]

    leaked = model.trained_state()["head.weight"]

    row = leaked[0] / leaked[0].norm()
    assert min(relative_difference(sign * row, last / last.norm()) for sign in (1, -1)) < 1e-5
    monkeypatch.setattr(NodeConfig, "request_limits", RequestLimits(min_batch_size=1))
    reply = train(unprotected, forgetful)
    assert reply.error.reason == (
        "RefusedByPolicy: learning-rate times weight-decay, with proximal-mu: must be at most 0.1, got 1"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (LocalOptions(batch_size=4), r"training.batch-size: must be at least 5 \(min-class-count\), got 4"),
        (LocalOptions(epochs=101), r"local-epochs: must be at most 100, got 101"),
        (LocalOptions(learning_rate=2.0), r"learning-rate: must be at most 1, got 2"),
        (
            LocalOptions(learning_rate=0.5, weight_decay=0.3),
            "learning-rate times weight-decay, with proximal-mu: must be at most 0.1",
        ),
        (
            LocalOptions(learning_rate=0.5, proximal_mu=0.3),
            "learning-rate times weight-decay, with proximal-mu: must be at most 0.1",
        ),
    ],
)
def test_a_request_over_a_bound_is_refused(victim: Victim, options: LocalOptions, reason: str) -> None:
    assert re.search(f"RefusedByPolicy: {reason}", train(victim, options).error.reason)


def test_few_samples_and_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    monkeypatch.setattr(NodeConfig, "request_limits", RequestLimits(min_batch_size=41))
    few, small = train(victim, LocalOptions(batch_size=64)), train(victim, LocalOptions(batch_size=8))

    assert few.error.reason.endswith("this node has fewer than 41 samples to train on (min-class-count)")
    assert "must be at least 41" in small.error.reason
    monkeypatch.setattr(NodeConfig, "request_limits", RequestLimits(max_local_steps=3))
    assert "steps of one call: must be at most 3" in train(victim, LocalOptions(batch_size=8)).error.reason


def test_what_keeps_to_the_bounds_is_trained(victim: Victim) -> None:
    reply = train(victim, LocalOptions(batch_size=16))

    assert not reply.has_error() and bool(to_tensors(reply.content["arrays"])["head.weight"].any())  # type: ignore[arg-type]
    loss = reply.content["metrics"]["loss"]  # type: ignore[index]
    assert loss * 40 == round(loss * 40)


@pytest.mark.parametrize(
    ("n", "batch", "smallest", "sizes"),
    [
        (37, 16, 0, [16, 16, 5]),
        (37, 16, 5, [16, 16, 5]),
        (36, 16, 5, [16, 20]),
        (33, 16, 5, [16, 17]),
        (32, 16, 5, [16, 16]),
        (4, 16, 5, [4]),
        (0, 16, 5, []),
    ],
)
def test_a_last_batch_that_is_too_small_joins_the_one_before(
    n: int, batch: int, smallest: int, sizes: list[int]
) -> None:
    found = batch_order(n, batch, (1, 2), 0, smallest=smallest)

    assert [len(one) for one in found] == sizes
    assert torch.equal(
        torch.cat([*found, torch.empty(0, dtype=torch.int64)]),
        torch.cat([*batch_order(n, batch, (1, 2), 0), torch.empty(0, dtype=torch.int64)]),
    )


def test_a_node_trains_on_no_smaller_batch(monkeypatch: pytest.MonkeyPatch, victim: Victim) -> None:
    seen: list[int] = []
    inputs = TensorSamples.inputs
    monkeypatch.setattr(TensorSamples, "inputs", lambda self, which: seen.append(len(which)) or inputs(self, which))

    train(victim, LocalOptions(batch_size=18))

    assert seen == [18, 22]


def mezo(victim: Victim, **settings: object) -> Message:
    request = TrainingRequest(2, class_names=CLASSES)
    setup = MezoSetup(request, **settings)  # type: ignore[arg-type]
    return victim.ask(MezoRequest(0, 1, 7, setup=setup, start=START).to_content(), "train.mezo")


def test_a_head_that_singles_a_sample_out_learns_no_more_of_its_loss_than_a_count(victim: Victim) -> None:
    """Losses by temperature are rounded to a sixteenth of what one sample can add, and bounded."""
    request = TrainingRequest(2, class_names=CLASSES)
    head = {"head.weight": 1e4 * torch.randn(2, DIM, generator=torch.Generator().manual_seed(3)), **START_BIAS}
    reply = victim.ask(training_content(request, to_record(head), ArrayRecord()), "train.losses")
    number = reply.content["metrics"]["num-examples"]
    assert isinstance(number, int)
    sums = number * to_tensors(reply.content["losses"])["by-temperature"]  # type: ignore[arg-type]
    torch.testing.assert_close(sums, sums.round(), rtol=0, atol=1e-9)
    assert 0.0 <= float(sums.min()) <= float(sums.max()) <= 16.0 * number


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"batch_size": 1}, "fedmezo.batch-size: must be at least 5 (min-class-count), got 1"),
        ({"num_directions": 1024}, "directions: must be at most 16, got 1024"),
    ],
)
def test_a_thousand_directions_of_one_sample_are_refused_and_leave_nothing(
    victim: Victim, settings: dict[str, object], reason: str
) -> None:
    before = sorted(victim.state.rglob("*"))

    assert mezo(victim, **settings).error.reason == f"RefusedByPolicy: {reason}"
    assert sorted(victim.state.rglob("*")) == before


def test_fedmezo_within_the_bounds_is_answered(tmp_path: Path) -> None:
    victim = Victim.of(tmp_path, images=20)

    assert not mezo(victim, batch_size=8).has_error() and not mezo(victim, num_directions=16).has_error()


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_keeps_to_the_defaults(path: Path) -> None:
    config = AppConfig.from_run_config(tomllib.loads(path.read_text()))
    limits = NodeConfig.from_node_config({"data-path": "/d"}).request_limits
    proximal = replace(config.local.with_rate(), proximal_mu=config.optimizer.proximal_mu)

    for options in (proximal, config.personal.local(flip=False)):
        limits.check_training(options, num_examples=50_000)
    limits.check_mezo(config.fedmezo.num_z, config.fedmezo.batch_size, 50_000)


def test_a_simulation_has_no_bounds_and_a_batch_is_as_large_as_a_class() -> None:
    assert NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 1}).request_limits == NO_LIMITS
    assert NodeConfig("/d").request_limits == RequestLimits()
    assert NodeConfig("/d", min_class_count=9).request_limits == RequestLimits(min_batch_size=9)
