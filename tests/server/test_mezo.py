"""FedMeZO in whole runs, without Ray: partitions, absences, faults, interruption, what is saved."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import Result

import fedstats_app
from fedstats_app import client_app, replay
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.client.replica import replica_of
from fedstats_app.fedmezo.average import TrainingDiverged
from fedstats_app.fedmezo.log import TrainingFiles, Update
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.strategies.fedmezo import MezoRound, MezoRounds
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.start import random_head
from tests.support.simulation import nodes_of, read_json, share_right, site_folder
from tests.support.simulation import rounds as training_rounds
from tests.support.simulation import simulate as simulate_app

FAST: Mapping[str, Any] = {"method": "fedncm", "num_server_rounds": 8, "fine_tune": "fedmezo", "wire_dtype": "float64"}
CLASSES = ("ant", "bee", "cat")


def forget() -> None:
    """Forget what a process holds: as in a new one."""
    replica_of.cache_clear()


def simulate(tmp_path: Path, **settings: Any) -> Path:
    """Run the app; all runs of these tests have one id, but no two share what nodes keep."""
    forget()
    return simulate_app(tmp_path, **{"cache_dir": str(tmp_path / "cache"), "feature_cache": "off", **settings})


def rounds(folder: Path) -> list[dict[str, Any]]:
    return training_rounds(folder, "fedncm-fedmezo")


def log(folder: Path, num_directions: int = 1) -> list[Any]:
    return TrainingFiles(folder / "mezo" / "fedncm-fedmezo").load_log(num_directions)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings of a run on 60 images that are not all told apart at once."""
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "test"):
        site_folder(root / split, CLASSES, seed=1, images=20)
        paths = sorted((root / split).rglob("*.png"))
        for one, other in np.random.default_rng(3).permutation(60)[:30].reshape(-1, 2):
            first, second = paths[one].read_bytes(), paths[other].read_bytes()
            paths[one].write_bytes(second)
            paths[other].write_bytes(first)
    return {**FAST, "dataset": f"folder:{root}"}


# Runs of the app


@pytest.mark.parametrize("tune", ["head", "full"])
def test_loss_falls_everywhere(
    tmp_path: Path, fast: dict[str, Any], tune: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**fast, "num_server_rounds": 12, "num_clients": 4, "partitioner": "iid"}
    folder = simulate(tmp_path, **settings | {"fine_tune": "fedmezo", "fedmezo.tune": tune})
    losses = [line["loss"] for line in rounds(folder)]
    assert losses[-1] < losses[0] and "4 of 4 replicas are bit-identical at the end" in capsys.readouterr().out
    # The temperature that comes first changes no prediction.
    solved = read_json(folder, "results.json")
    assert rounds(folder)[0]["accuracy"] == pytest.approx(solved["methods"]["fedncm"]["accuracy"], abs=0.05)
    assert all(line["forward_passes"] == (0 if tune == "head" else 2 * 60) for line in rounds(folder)[1:])


def test_a_client_whose_scalars_are_always_cut_is_noted(tmp_path: Path, fast: dict[str, Any]) -> None:
    settings = {**fast, "num_clients": 3, "partitioner": "iid", "num_server_rounds": 10}
    folder = simulate(tmp_path, **settings | {"fedmezo.clip": 0.1})
    notes = read_json(folder, "results.json")["training"]["fedncm-fedmezo"]["notes"]
    assert re.search(r"site \d had scalars above the limit in \d+ of 10 rounds \(fedmezo.clip\)", notes[1])


def test_an_interrupted_run_ends_with_the_bytes_of_a_whole_one(tmp_path: Path, fast: dict[str, Any]) -> None:
    settings = {**fast, "num_clients": 6, "fraction_tune": 0.5, "fedmezo.num-z": 2, "fedmezo.tune": "full"}
    whole = simulate(tmp_path / "whole", nodes=1, **settings)
    settings |= {"nodes": 4, "shuffle_seed": 4}
    part = simulate(tmp_path / "part", **{**settings, "num_server_rounds": 3})
    # What a kill between two writes leaves: a round that is recorded and not in the log.
    state = TrainingFiles(part / "mezo" / "fedncm-fedmezo")
    state.save_log(state.load_log(2)[:2])
    simulate(tmp_path / "part", resume=str(part), **settings)
    heads = ("heads/fedncm-fedmezo.safetensors", "heads/fedncm-fedmezo.backbone.safetensors")
    for name in (*heads, "mezo/fedncm-fedmezo/log.bin"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()
    assert [line["round"] for line in rounds(part)] == list(range(9))


def test_the_log_and_the_start_give_the_model_again(tmp_path: Path, fast: dict[str, Any]) -> None:
    folder = simulate(tmp_path, **fast | {"fedmezo.tune": "names:backbone.0.*,head.*"}, num_clients=3)
    backbone = load_backbone("random:tiny", input_size=16, batch_size=16, channels_last=True)
    replica = replay(folder / "mezo" / "fedncm-fedmezo", backbone)
    notes = read_json(folder, "results.json")["training"]["fedncm-fedmezo"]["notes"]
    assert f"digest {replica.digest().hex()}" in notes[0]
    accuracy = share_right(fedstats_app.load(folder, "fedncm-fedmezo", batch_size=64), 60, fast["dataset"])
    assert accuracy == pytest.approx(rounds(folder)[-1]["accuracy"], abs=1e-3)
    with pytest.raises(ValueError, match="the backbone must have fingerprint"):
        replay(folder / "mezo" / "fedncm-fedmezo", load_backbone("random:tiny", input_size=32))
    with pytest.raises(ValueError, match="must hold the start of a training by FedMeZO"):
        replay(folder, backbone)


def test_clients_evaluate_where_the_server_has_no_data(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "ab", CLASSES, images=12, min_class_count=0, train=True)
    folder = simulate(tmp_path, **FAST, node_configs=nodes, num_clients=2)
    assert rounds(folder)[0]["accuracy"] is not None and rounds(folder)[-1]["loss"] < rounds(folder)[0]["loss"]


# Absent, late and new nodes: every message is a new process


class Federation:
    """Nodes with folders of their own, whose ClientApp remembers nothing between two messages."""

    def __init__(self, root: Path, num_nodes: int, **options: Any) -> None:
        self.root = root
        self.configs = [
            {
                "train": True,
                "data-path": site_folder(root / f"site{node}", CLASSES, seed=node, images=6 + node),
                "state-dir": str(root / f"state{node}"),
                "min-class-count": 0,
            }
            for node in range(num_nodes)
        ]
        settings = AppConfig.of(backbone="random:tiny", input_size=16, min_clients=1, cache_dir=str(root / "cache"))
        self.grid = LocalGrid(self.app, self.configs, settings.to_run_config())
        self.grid.faults = self.faults = dict[int, Fault]()
        self.backbone = load_backbone("random:tiny", input_size=16, batch_size=16, channels_last=True)
        tuned = options.pop("tuned", "full")
        known = {"backbone_fingerprint": self.backbone.fingerprint, "class_names": CLASSES}
        head = random_head(3, 32, seed=1, bias=True)
        request = TrainingRequest(3, "probe" if tuned == "head" else "full", seed=5, **known)  # type: ignore[arg-type]
        self.setup = MezoSetup(request, tuned=tuned, **options)
        self.start = {"head.weight": head.weight.float(), "head.bias": head.bias.float()}
        self.clients = {FIRST_NODE_ID + node: 3 * (6 + node) for node in range(num_nodes)}

    @staticmethod
    def app(msg: Message, context: Context) -> Message:
        forget()
        return client_app.app(msg, context)

    def replica(self) -> Replica:
        backbone = self.backbone
        model = build_model(self.setup, self.start, backbone.module, backbone.feature_dim, backbone.device)
        return make_replica(self.setup, model)

    def strategy(self, log: Sequence[Update] = (), sizes: Sequence[Sequence[float]] = (), **options: Any) -> MezoRounds:
        strategy = MezoRounds(self.setup, self.clients, **{"learning_rate": 0.01, **options})
        strategy.start_from(self.start, self.replica(), log, sizes)
        return strategy

    def run(self, strategy: MezoRounds, num_rounds: int) -> list[MezoRound]:
        return list(strategy.rounds(self.grid, Result(), num_rounds))

    def state(self, node: int) -> Path:
        (folder,) = (self.root / f"state{node}").glob("mezo-*")
        return folder


def test_absent_late_and_new_nodes_end_with_the_same_bits(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4)
    draw = np.random.default_rng(5)

    def absences(number: int) -> None:
        away = Fault(unavailable=True)
        for node in range(4):
            absent = draw.random() < 0.5 or (node == 3 and number < 12)
            federation.faults[node] = away if absent else Fault()
        if number == 8:
            shutil.rmtree(federation.state(1))

    strategy = federation.strategy()
    outcomes = []
    absences(1)
    for outcome in strategy.rounds(federation.grid, Result(), 20):
        outcomes.append(outcome)
        absences(outcome.server_round + 1)
    federation.faults.clear()
    replica = strategy.replica
    # Every node keeps its replica in a file; all have been away, and some round had nobody.
    for node in range(4):
        took_part = [one.server_round for one in outcomes if FIRST_NODE_ID + node in one.num_examples]
        assert 2 <= len(took_part) <= 16
        assert node != 3 or took_part[0] >= 12
    assert any(not one.num_examples for one in outcomes)
    replay = federation.replica()
    replay.apply(list(strategy.log))
    assert replay.digest() == replica.digest() != federation.replica().digest()
    asked = strategy.synchronise(ClientGrid(federation.grid))
    assert sorted(asked.by_client) == sorted(federation.clients)
    assert {answer.digest for answer in asked.by_client.values()} == {replica.digest()} and not asked.failures


# What each message costs


def deflated(content: RecordDict) -> int:
    """Return the bytes of a message's objects as they are stored and sent, ids of children among them."""
    children = sum(len(record.deflate()) for record in content.values())
    return len(content.deflate()) + children


def test_a_round_takes_less_than_64_bytes_each_way(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2)
    strategy = federation.strategy()
    exchanged: list[tuple[Message, Message]] = []

    def app(msg: Message, context: Context) -> Message:
        exchanged.append((msg, Federation.app(msg, context)))
        return exchanged[-1][1]

    federation.grid.app = app
    federation.run(strategy, 3)
    empty = deflated(RecordDict())
    for message in exchanged[-1]:
        (record,) = message.content.values()
        assert set(message.content) == {"m"}
        assert sum(len(value) if isinstance(value, bytes) else 8 for value in record.values()) <= 64
        assert deflated(message.content) - empty <= 300
    outcome = federation.run(strategy, 1)[0]
    assert (outcome.answers.bytes_down, outcome.answers.bytes_up, outcome.answers.bytes_catch_up) == (2 * 40, 2 * 32, 0)


# Nodes that are wrong


def tampered(change: Callable[[ConfigRecord], object]) -> Fault:
    def tamper(reply: Message) -> Message:
        change(reply.content["m"])  # type: ignore[arg-type]
        return reply

    return Fault(tamper=tamper)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"g": np.array([np.nan]).tobytes()}, "g: must be finite and at most 1e+30 in size, got (nan,)"),
        ({"d": bytes(16)}, "its replica of round 0 differs, also after a replay"),
    ],
)
def test_a_bad_answer_is_named_and_left_out(tmp_path: Path, change: dict[str, bytes], reason: str) -> None:
    federation = Federation(tmp_path, 3, tuned="head")
    federation.faults[1] = tampered(lambda record: record.update(change))
    (outcome,) = federation.run(federation.strategy(), 1)
    ((client, found),) = outcome.answers.failures.items()
    assert client == FIRST_NODE_ID + 1 and reason in found
    federation.faults.clear()
    alone = federation.strategy()
    del alone.clients[FIRST_NODE_ID + 1]
    (without,) = federation.run(alone, 1)
    assert without.update == outcome.update


def test_a_forged_scalar_is_cut(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, tuned="head")
    (honest,) = federation.run(federation.strategy(), 1)
    federation.faults[2] = tampered(lambda record: record.update({"g": np.array([1e9]).tobytes()}))
    (cut,) = federation.run(federation.strategy(), 1)
    assert cut.clipped == (FIRST_NODE_ID + 2,)
    assert abs(cut.update.steps[0] - honest.update.steps[0]) < 2 * 3.0 * 0.01 * max(honest.sizes)
    (uncut,) = federation.run(federation.strategy(clip=0.0), 1)
    assert abs(uncut.update.steps[0]) > 1e5


def test_one_client_cannot_choose_the_learning_rate(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, tuned="head")
    grid = ClientGrid(federation.grid)
    honest = federation.strategy(learning_rate=None)
    honest.measure_learning_rate(grid)
    assert honest.learning_rate is not None

    def lie(record: ConfigRecord) -> None:
        record["g"] = (-1e9 * np.frombuffer(record["g"], "<f8")).tobytes()  # type: ignore[call-overload]

    federation.faults[2] = tampered(lie)
    strategy = federation.strategy(learning_rate=None)
    asked_rate = strategy.measure_learning_rate(grid)
    assert strategy.learning_rate == pytest.approx(honest.learning_rate, rel=0.5)
    assert list(asked_rate.failures) == [FIRST_NODE_ID + 2]
    with pytest.raises(TrainingDiverged):
        federation.strategy(learning_rate=None, clip=0.0).measure_learning_rate(grid)


def test_a_damaged_replica_is_brought_back_by_the_log(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3)
    strategy = federation.strategy()
    federation.run(strategy, 4)
    # A file that is sound in itself but of another model, and one that is cut short.
    replica = federation.replica()
    replica.apply([replace(update, seed=update.seed + 1) for update in strategy.log])
    TrainingFiles(federation.state(0)).save_replica(replica.state(), replica.round)
    path = federation.state(1) / "replica.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    (outcome,) = federation.run(strategy, 1)
    assert outcome.answers.replayed == [FIRST_NODE_ID] and len(outcome.num_examples) == 3
    assert not outcome.answers.failures
    (outcome,) = federation.run(strategy, 1)
    assert not outcome.answers.replayed


def test_rounds_without_answers_change_nothing_and_then_end_the_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2, tuned="head")
    strategy = federation.strategy(min_clients=2)
    federation.run(strategy, 1)
    federation.faults[0] = Fault(raises="the disk is gone")
    digest = strategy.replica.digest()
    assert all(outcome.update.steps == (0.0,) for outcome in federation.run(strategy, 9))
    assert strategy.replica.digest() == digest
    with pytest.raises(TooFewClients, match=rf"for 10 rounds .* 1 of 2; .*site {FIRST_NODE_ID}: the disk is gone"):
        federation.run(strategy, 1)


def test_a_rate_that_is_far_too_large_ends_the_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2)
    strategy = federation.strategy(learning_rate=1e6)  # no unit of the network is active any more after a few steps
    outcomes = federation.run(strategy, 60)
    assert strategy.stalled_rounds == 5 and len(outcomes) < 60
    with pytest.raises((TrainingDiverged, TooFewClients), match=r"not finite|is nan"):
        federation.run(federation.strategy(learning_rate=1e30), 20)
