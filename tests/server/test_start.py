"""What a training starts from: a head of an earlier run, the temperature of its logits and its learning rate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from fedstats_app import client_app
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.training.evaluation import losses_by_temperature
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import best_temperature, probe_rate, probe_step, typical_steps
from tests.server.test_training_stage import client_features, interrupted
from tests.support.simulation import central, nodes_of, read_json, rounds, simulate


def test_training_goes_on_from_a_trained_head(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "fedncm", "fine_tune": "probe", "learning_rate": 0.1, "temperature": 1.0}
    first = simulate(tmp_path / "b", **settings, num_server_rounds=1)
    path = first / "heads" / "fedncm-probe.safetensors"
    second = simulate(tmp_path / "c", **settings, num_server_rounds=1, start_head=str(path))
    ended, begun = rounds(first, "fedncm-probe")[-1], rounds(second, "file-probe")[0]
    assert (begun["accuracy"], begun["loss"]) == (ended["accuracy"], ended["loss"])
    (one, _), (other, _) = read_head(path), read_head(second / "heads" / "file-probe.safetensors")
    assert not torch.equal(one.weight, other.weight)  # and it goes on


def test_a_head_of_another_backbone_or_other_classes_is_refused_before_any_client_is_asked(tmp_path: Path) -> None:
    path = str(simulate(tmp_path / "a", method="fedncm") / "heads" / "fedncm.safetensors")
    settings: dict[str, Any] = {"method": "fedncm", "fine_tune": "probe", "num_server_rounds": 1}
    with pytest.raises(ValueError, match=r"start-head: .* is for features of random:tiny, fingerprint"):
        simulate(tmp_path / "b", **settings, start_head=path, input_size=24)
    with pytest.raises(ValueError, match=r"is for the classes .*; this run's are"):
        simulate(tmp_path / "c", **settings, start_head=path, classes="5")
    with pytest.raises(FileNotFoundError, match="no head at"):
        simulate(tmp_path / "d", **settings, start_head=path + "x")
    assert all(not list(tmp_path.glob(f"{run}/runs/*/results.json")) for run in "bcd")


FOUND: Mapping[str, Any] = {"method": "fed3r", "num_server_rounds": 5, "fine_tune": "probe"}
FIXED: Mapping[str, Any] = {**FOUND, "learning_rate": 0.01, "temperature": 1.0}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shares = {"training.max-share": 1.0}  # as many as samples say
    return simulate(tmp_path_factory.mktemp("found"), start_head="fed3r,random", **FOUND, **shares)


def test_both_are_found_from_what_clients_have(found: Path) -> None:
    config = AppConfig.of(backbone="random:tiny", input_size=16, num_clients=10)
    everybody = list(range(10))
    statistics, _ = central(config, everybody)
    step = probe_step(statistics.class_counts, statistics.class_sums)
    assert step is not None
    results = read_json(found, "results.json")
    training = results["training"]
    parts = [client_features(config, client) for client in everybody]
    steps = typical_steps({client: len(labels) for client, (_, labels) in enumerate(parts)}, 16, 1, 1.0)
    assert training["fed3r-probe"]["learning_rate"] == pytest.approx(probe_rate(step, num_steps=steps), rel=1e-3)
    assert training["random-probe"]["learning_rate"] == pytest.approx(probe_rate(step, made_classes=10), rel=1e-3)
    samples = TensorSamples(*(torch.cat(column) for column in zip(*parts, strict=True)))
    head, _ = read_head(found / "heads" / "fed3r.safetensors")
    best = best_temperature(losses_by_temperature(TunedModel(head, tune="probe"), samples, 1000))
    assert training["fed3r-probe"]["start_temperature"] == pytest.approx(best, rel=1e-3)
    assert training["random-probe"]["start_temperature"] == 1.0
    # No prediction has changed, so that the start is still the closed-form head.
    assert training["fed3r-probe"]["start_accuracy"] == results["methods"]["fed3r"]["accuracy"]


def test_a_probe_does_not_lose_what_its_start_knows(tmp_path: Path, found: Path) -> None:
    """At a fixed rate, from logits as they are solved, it forgets the head for another."""
    fixed = simulate(tmp_path, **FIXED)
    (start, *_, after), (_, *_, lost) = (rounds(folder, "fed3r-probe") for folder in (found, fixed))
    assert lost["accuracy"] < start["accuracy"] - 0.02 and after["accuracy"] > start["accuracy"] - 0.01
    assert after["loss"] < 1.3 < lost["loss"]


def test_nodes_forget_the_question_and_nobody_is_asked_about_what_is_given(tmp_path: Path) -> None:
    asked: list[str] = []

    def app(msg: Message, context: Context) -> Message:
        asked.append(msg.metadata.message_type)
        return client_app.app(msg, context)

    sites = nodes_of(tmp_path, "ab", ("ant", "bee"), images=20, train=True)
    configs = [{**site, "state-dir": str(tmp_path / f"s{number}")} for number, site in enumerate(sites)]
    folder = simulate(tmp_path, node_configs=configs, app=app, **{**FOUND, "method": "fedncm"})
    assert asked.count("train.losses") == 2  # about the start; of the end tells what they hold out
    assert rounds(folder, "fedncm-probe")[0]["num_failed"] == 0
    asked.clear()
    simulate(tmp_path / "given", node_configs=configs, app=app, **{**FIXED, "method": "fedncm"})
    assert "train.losses" not in asked


def test_the_start_is_kept_where_the_clients_loss_did_not_fall(tmp_path: Path) -> None:
    """At a rate that is far too high training loses; a resumed run knows what its start was worth."""
    settings = {**FOUND, "learning_rate": 30.0, "num_server_rounds": 2, "num_clients": 4}
    folder = simulate(tmp_path / "whole", **settings)
    entry = read_json(folder, "results.json")["training"]["fed3r-probe"]
    assert entry["kept_round"] == 0 and entry["accuracy"] == entry["start_accuracy"]
    assert "the start was kept" in entry["notes"][0]
    (start, _), (kept, _) = (read_head(folder / "heads" / f"{name}.safetensors") for name in ("fed3r", "fed3r-probe"))
    torch.testing.assert_close(kept.weight * entry["start_temperature"], start.weight)
    lines = rounds(folder, "fed3r-probe")
    assert lines[-1]["bytes_down"] > lines[-2]["bytes_down"]  # the question about the end goes down too
    assert sum(line["bytes_up"] + line["bytes_down"] for line in lines) == entry["bytes"] - entry["start_bytes"]
    resumed = simulate(tmp_path / "cut", resume=str(interrupted(tmp_path / "cut", 5, **settings)), **settings)
    again = read_json(resumed, "results.json")["training"]["fed3r-probe"]
    assert (again["kept_round"], again["notes"]) == (entry["kept_round"], entry["notes"])


def test_what_clients_hold_out_judges_a_training_and_not_their_loss_on_its_own_samples(tmp_path: Path) -> None:
    """Of two that are as often right, the smaller loss."""
    settings = {**FOUND, "start_head": "fed3r,random", "holdout_fraction": 0.3, "learning_rate": 30.0}
    nodes = nodes_of(tmp_path, "ab", ("ant", "bee"), images=20, train=True)
    folder = simulate(tmp_path, node_configs=nodes, **settings)
    kept = []
    for name, entry in read_json(folder, "results.json")["training"].items():
        first, *_, last = rounds(folder, name)
        gained = (last["accuracy"], -last["loss"]) > (first["accuracy"], -first["loss"])
        assert entry["kept_round"] == (None if gained else 0), name
        assert any("the start was kept, because training gained nothing" in note for note in entry["notes"]) != gained
        kept.append(entry["kept_round"])
    assert set(kept) == {0, None}
