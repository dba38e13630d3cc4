"""FedMeZO in whole runs: the partition does not matter, and the tuned model predicts again."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstats_app import replay
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.fedmezo.log import TrainingFiles
from tests.support.simulation import read_json, simulate


def test_any_number_of_clients_gives_the_same_model(tmp_path: Path) -> None:
    weights, backbone = [], load_backbone("random:tiny", input_size=16, batch_size=16, channels_last=True)
    for clients, partitioner in [(10, "dirichlet"), (1, "iid"), (2, "iid"), (50, "dirichlet"), (50, "iid")]:
        folder = simulate(
            tmp_path,
            num_clients=clients,
            partitioner=partitioner,
            dirichlet_alpha=0.1,
            min_clients=1,
            method="fedncm",
            wire_dtype="float64",
            fine_tune="fedmezo@dtype=float64",
            num_server_rounds=100,
            evaluate_every=50,
        )
        replica = replay(folder / "mezo" / "fedncm-fedmezo", backbone)
        assert replica.round == 100
        (note,) = read_json(folder, "results.json")["training"]["fedncm-fedmezo"]["notes"]
        same = f"{clients} of {clients} replicas are bit-identical in the end, digest {replica.digest().hex()}"
        assert note.startswith(same)
        weights.append(replica.parameters["head.weight"].detach().clone())
    start = TrainingFiles(folder / "mezo" / "fedncm-fedmezo").load_start()
    assert start is not None
    assert (weights[0] - start[1]["head.weight"]).abs().max() > 1e-2
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=0, atol=1e-9)
