"""Stage 2 in whole runs, without Ray: every mode and optimiser, hosts, faults, interruption."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from safetensors.torch import load_file

import fedstats_app
from fedstats_app import client_app
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.testing import Fault
from fedstats_app.wire.serving import clients_in
from tests.support.simulation import Killed, clients, killed, read_json, rounds, share_right, simulate, site_folder

FAST: Mapping[str, Any] = {"method": "fedncm", "num_server_rounds": 3, "fine_tune": "probe", "learning_rate": 0.1}


def client_features(config: AppConfig, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    dataset, indices = training_set(config.data), partitions(config.data, config.partition, config.run.seed)[client]
    reader = FeatureReader(loaded_backbone(config.backbone_for(own_data=False)))
    features = torch.cat([block for block, _ in reader.blocks(dataset, indices)])
    return features, torch.from_numpy(np.array(dataset.labels[indices]))


@pytest.mark.parametrize("tune", ["full", "features"])
def test_a_tuned_backbone_predicts_again(tmp_path: Path, tune: str) -> None:
    few = {"num_clients": 2, "num_server_rounds": 1}
    folder = simulate(tmp_path, **{**FAST, "fine_tune": tune, "start_head": "fedncm", "learning_rate": 0.05, **few})
    name = f"fedncm-{tune}"
    started, tuned = (read_head(folder / "heads" / f"{one}.safetensors")[0] for one in ("fedncm", name))
    assert torch.equal(started.weight, tuned.weight) is (tune == "features")
    state = load_file(folder / "heads" / f"{name}.backbone.safetensors")
    config = AppConfig.of(backbone="random:tiny", input_size=16)
    before = loaded_backbone(config.backbone_for(own_data=False)).module.state_dict()
    assert any(not torch.equal(state[key].float(), before[key].float()) for key in state)
    accuracy = share_right(fedstats_app.load(folder, name, batch_size=64), 250)
    recorded = read_json(folder, "results.json")["training"][name]["accuracy"]
    assert recorded == rounds(folder, name)[-1]["accuracy"] and accuracy == pytest.approx(recorded, abs=0.01)


def test_several_starts_are_compared_in_one_run(tmp_path: Path) -> None:
    folder = simulate(tmp_path, **{**FAST, "start_head": "random,zero,fedncm", "method": "fedncm,fedcof"})
    training = read_json(folder, "results.json")["training"]
    assert set(training) == {"random-probe", "zero-probe", "fedncm-probe"}
    for name in training:
        lines = rounds(folder, name)
        assert [line["round"] for line in lines] == [0, 1, 2, 3] and 0 < lines[1]["bytes_up"] <= lines[1]["bytes_down"]
        # Of a solved head, clients are asked once at which temperature their loss is least.
        assert (lines[0]["bytes_up"] > 0) == (name == "fedncm-probe")
    # A probe needs each sample's features once: from a made head in the first round, from a solved one before it.
    assert [line["forward_passes"] for line in rounds(folder, "random-probe")] == [0, 1000, 0, 0]
    assert [line["forward_passes"] for line in rounds(folder, "fedncm-probe")] == [0, 0, 0, 0]


def test_bad_updates_are_left_out_or_shortened_and_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def times(factor: float) -> Fault:
        def tamper(reply: Message) -> Message:
            for name, record in [item for item in reply.content.array_records.items() if item[0].endswith("arrays")]:
                changed = {key: Array(array.numpy() * np.float32(factor)) for key, array in record.items()}
                reply.content[name] = ArrayRecord(changed)
            return reply

        return Fault(tamper=tamper)

    settings = {**FAST, "num_clients": 5, "partitioner": "iid", "num_server_rounds": 1}
    folder = simulate(tmp_path, nodes=5, faults={2: times(np.nan), 3: times(1e6)}, **settings)
    assert "site 2 is not in the average: head.bias: must be finite, got NaN or infinity" in capsys.readouterr().out
    assert [line["num_failed"] for line in rounds(folder, "fedncm-probe")] == [0, 1]
    notes = read_json(folder, "results.json")["training"]["fedncm-probe"]["notes"]
    assert any("site 3: updates up to" in note and "were shortened (training.clip)" in note for note in notes)


def test_fedprox_without_its_term_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    settings = {**FAST, "num_clients": 2, "num_server_rounds": 2, "local-epochs": 2}
    heads = [
        read_head(simulate(tmp_path / name, **settings, **options) / "heads" / "fedncm-probe.safetensors")[0].weight
        for name, options in {
            "fedavg": {"optimizer": "fedavg"},
            "none": {"optimizer": "fedprox", "training.proximal-mu": 0.0},
            "some": {"optimizer": "fedprox", "training.proximal-mu": 1.0},
        }.items()
    ]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_a_class_under_the_owners_floor_does_not_train_either(tmp_path: Path) -> None:
    few = site_folder(tmp_path / "a", ("ant", "bee"), seed=1, images=20)
    for number in range(6):
        (tmp_path / "a" / "ant" / f"{number}.png").write_bytes(b"no image")
    many = site_folder(tmp_path / "b", ("ant", "bee"), seed=2, images=20)
    # The six broken ones bring a class under the floor; of 20 images no 15 can be held out.
    floors = ((few, 15), (many, 5))
    configs = [{"train": True, "data-path": path, "min-class-count": floor} for path, floor in floors]
    folder = simulate(tmp_path, node_configs=configs, **FAST)
    assert {line["num_examples"] for line in clients(folder)} == {20, 2 * 15}
    # A client whose weight is not that of its statistics would be left out.
    assert [line["num_failed"] for line in rounds(folder, "fedncm-probe")] == [0, 0, 0, 0]


def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    settings = {**FAST, "optimizer": "fedadam", "start_head": "random,fedncm", "num_server_rounds": 4}
    settings |= {"fraction_tune": 0.5, "num_clients": 4}
    whole = simulate(tmp_path / "whole", **settings)
    # Two clients a round: once in the third round from the random head, once in the third from FedNCM's.
    folder = interrupted(tmp_path / "cut", 5, **settings)
    assert not (folder / "heads" / "random-probe.safetensors").exists()
    folder = interrupted(tmp_path / "cut", 9, resume=str(folder), **settings)
    assert (folder / "heads" / "random-probe.safetensors").exists()
    resumed = simulate(tmp_path / "cut", resume=str(folder), **settings)
    for path in sorted((whole / "heads").iterdir()):
        assert (resumed / "heads" / path.name).read_bytes() == path.read_bytes(), path.name
    for name in ("random-probe", "fedncm-probe"):
        one, other = ([{**line, "seconds": 0.0} for line in rounds(run, name)] for run in (whole, resumed))
        assert one == other


def interrupted(tmp_path: Path, after_trainings: int, **settings: Any) -> Path:
    """Run until so many clients have trained, and return the folder that is left."""
    trained = 0

    def app(msg: Message, context: Context) -> Message:
        nonlocal trained
        if msg.metadata.message_type == "train":
            trained += clients_in(msg)
            if trained > after_trainings:
                raise Killed
        return client_app.app(msg, context)

    return killed(tmp_path, app=app, **settings)


def test_resume_refuses_another_run(tmp_path: Path) -> None:
    plain = simulate(tmp_path, method="fedncm", learning_rate=0.1)
    with pytest.raises(ValueError, match=r"not the run that was interrupted:\n  learning-rate: was 0.1, is 0.2"):
        simulate(tmp_path, method="fedncm", learning_rate=0.2, resume=str(plain))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        simulate(tmp_path, resume=str(tmp_path / "nowhere"), **FAST)
