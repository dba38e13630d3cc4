"""Answers of a node to FedMeZO's messages, of which each is read by a new process."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.client.replica import NodeReplica
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients
from fedstats_app.fedmezo.setup import MezoSetup, load_start, make_replica
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.samples import SelectedSamples, TensorSamples, batch_order
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.mezo import UNKNOWN, MezoRequest

SETUP = MezoSetup(TrainingRequest(2, "full", seed=3), tuned="full", num_directions=2, batch_size=5)
START = {"weight": torch.eye(2), "bias": torch.zeros(2)}
SAMPLES = TensorSamples(torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
LOG = tuple(Update(seed, (0.5, 0.25)) for seed in range(6))


def replica(folder: Path) -> NodeReplica:
    return NodeReplica(
        folder,
        lambda client, setup: (SAMPLES, 4),
        lambda setup, start: (load_start(nn.Linear(2, 2), start), 8),
        shared=False,
    )


def request(number: int, first: int | None = None, *, restart: bool = False, **start: Tensor) -> MezoRequest:
    """Ask for a round, with the updates from ``first`` on, by default the last alone, and a start if one is given."""
    updates = LOG[max(number - 2, 0) if first is None else first : number - 1]
    return MezoRequest(0, number, 9, updates, restart=restart, setup=SETUP if start else None, start=start)


def digest(number: int, start: dict[str, Tensor] = START) -> bytes:
    made = make_replica(SETUP, load_start(nn.Linear(2, 2), start))
    made.apply(LOG[: number - 1])
    return made.digest()


@pytest.mark.parametrize("lasting", [False, True], ids=["a process a message", "one process"])
def test_transitions(tmp_path: Path, lasting: bool) -> None:
    folder, other = tmp_path / "mezo-1", {**START, "bias": torch.ones(2)}
    node = replica(folder)

    def asked(one: MezoRequest) -> bytes:
        nonlocal node
        node = node if lasting else replica(folder)
        return node.answer(one, None).digest

    assert asked(request(1)) == UNKNOWN.digest and asked(request(1, **START)) == digest(1)
    assert asked(request(2)) == digest(2)
    assert asked(request(4)) == UNKNOWN.digest  # it missed a round
    assert asked(request(4, 1)) == asked(request(4)) == digest(4)
    assert asked(request(4, 0, **START)) == digest(4)  # the start that it knows
    assert asked(request(3, 0, **START)) == digest(3)  # the server continues from an earlier round
    assert asked(request(4, 0, **other)) == digest(4, other)
    assert asked(request(2, 0, restart=True, **other)) == digest(2, other)
    for name in ("replica.safetensors", "log.bin", "start.safetensors"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert asked(request(3)) == (digest(3, other) if lasting else UNKNOWN.digest)
    assert asked(request(3, 0, **other)) == digest(3, other)


def test_a_start_that_does_not_fit_leaves_what_is_known(tmp_path: Path) -> None:
    replica(tmp_path).follow(request(2, 0, **START))
    node = replica(tmp_path)
    with pytest.raises(RejectedRequest, match=r"the model does not fit: .* size mismatch for bias"):
        node.follow(request(2, 0, weight=START["weight"], bias=torch.zeros(3)))
    assert node.follow(request(3)) and node.replica.digest() == digest(3)


def test_each_direction_draws_a_batch_of_its_own(tmp_path: Path) -> None:
    node, one = replica(tmp_path), request(1, **START)
    scalars, probes = node.answer(one, None).scalars, node.replica.probes(9)
    assert len(scalars) == 2
    for index, scalar in enumerate(scalars):
        mine = SelectedSamples(SAMPLES, batch_order(20, 5, (3, 4, 1), index)[0])
        assert projected_gradients(Perturbation(node.model, ["weight", "bias"]), mine, 8, [probes[index]]) == (scalar,)
