"""FedMeZO in whole runs: the partition does not matter, and the tuned model predicts again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedstats_app import replay, simulate
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.fedmezo.log import TrainingFiles
from tests.support.flower import REAL_RUNS, Simulation, simulation

pytestmark = REAL_RUNS

SETTINGS: dict[str, str | int | float | bool] = {
    "method": "fedncm",
    "backbone": "random:tiny",
    "input-size": 16,
    "wire-dtype": "float64",
    "min-clients": 1,
    "plots": False,
    "fine-tune": "fedmezo",
    "fedmezo-dtype": "float64",
    "num-server-rounds": 100,
    "evaluate-every": 50,
    "dirichlet-alpha": 0.1,
}


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    with simulation(tmp_path_factory.mktemp("home")) as made:
        yield made


def test_any_number_of_clients_gives_the_same_model(flower: Simulation, tmp_path: Path) -> None:
    """By Flower's engine once; the others in this process, whose runs are Flower's to the byte."""
    weights, backbone = [], load_backbone("random:tiny", input_size=16, batch_size=16, channels_last=True)
    for clients, partitioner in [(10, "dirichlet"), (1, "iid"), (2, "iid"), (50, "dirichlet"), (50, "iid")]:
        settings = {**SETTINGS, "num-clients": clients, "partitioner": partitioner}
        if not weights:
            words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items()).replace('"', "'")
            command = f'flwr run . --stream -c "{words}"'
            folder = flower.bash(command).folder
        else:
            folder = simulate({**settings, "output-dir": str(tmp_path)})
        replica = replay(folder / "mezo" / "fedncm-fedmezo", backbone)
        assert replica.round == 100
        results = json.loads((folder / "results.json").read_text())
        (note,) = results["training"]["fedncm-fedmezo"]["notes"]
        assert note.startswith(
            f"{clients} of {clients} replicas are bit-identical in the end, digest {replica.digest().hex()}"
        )
        weights.append(replica.parameters["head.weight"].detach().clone())
    start = TrainingFiles(folder / "mezo" / "fedncm-fedmezo").load_start()
    assert start is not None
    assert (weights[0] - start[1]["head.weight"]).abs().max() > 1e-2
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=0, atol=1e-9)
        print(f"largest difference {float((other - weights[0]).abs().max()):.2g}")
