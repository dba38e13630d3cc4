"""What one client can do to a round of training by gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import make_optimizer
from fedstats_app.strategies.update_limits import UpdateLimits
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import OptimizerOptions
from fedstats_app.wire import per_client
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.training import read_training_task, training_reply
from tests.support.local_grid import Fault, LocalGrid

START = {"head.bias": torch.zeros(2), "head.weight": torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])}
# Samples of the clients; one is large, and takes as many more steps.
COUNTS = (20, 30, 40, 50, 900, 3, 30, 40)
LIAR = 3


def toward_a_goal(msg: Message, context: Context, client_id: int | None) -> Message:
    """A client that moves toward a goal of its own near the common one, the farther the more samples it has."""
    task, client = read_training_task(msg), int(client_id or 0)
    own = np.random.default_rng(client).normal(size=8).astype(np.float32)
    goals = {"head.bias": torch.from_numpy(own[:2]), "head.weight": torch.from_numpy(5 + own[2:].reshape(2, 3))}
    pull = 1.0 - 0.99 ** COUNTS[client]
    moved = {name: tensor + pull * (goals[name] - tensor) for name, tensor in task.trained.items()}
    return training_reply(msg, moved, num_examples=COUNTS[client], loss=1.0, seconds=0.0)


def lying(times: float) -> Fault:
    """A client whose change is multiplied by something, from what it was sent on."""

    def tamper(reply: Message) -> Message:
        for name, record in list(reply.content.array_records.items()):
            arrays = {}
            for key, array in record.items():
                changed = array.numpy().astype(np.float64)
                arrays[key] = Array((changed * times).astype(np.float32))
            reply.content[name] = ArrayRecord(arrays)
        return reply

    return Fault(tamper=tamper)


def train(
    optimizer: str, *, times: float | None = None, rounds: int = 30, without: int | None = None, **limits: Any
) -> tuple[dict[str, torch.Tensor], list[TrainingRound]]:
    clients = [client for client in range(len(COUNTS)) if client != without]
    faults = {} if times is None else {LIAR: lying(times)}
    local = LocalGrid(per_client(toward_a_goal), [{}] * len(COUNTS), faults=faults)
    grid = ClientGrid(local, dict(zip(range(len(COUNTS)), sorted(local.contexts), strict=True)))
    inner = make_optimizer(OptimizerOptions(optimizer))
    counts = {client: COUNTS[client] for client in clients}
    strategy = FineTuning(inner, TrainingRequest(2), counts, limits=UpdateLimits(**limits))
    seen: list[TrainingRound] = []
    strategy.on_round = seen.append
    return to_tensors(strategy.start(grid, to_record(START), rounds).arrays), seen


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadam-torch"])
@pytest.mark.parametrize("times", [-100.0, 1e9])
def test_one_hostile_update_is_left_out_and_named_under_every_optimizer(optimizer: str, times: float) -> None:
    honest, _ = train(optimizer, without=LIAR, rounds=4)
    attacked, rounds = train(optimizer, times=times, rounds=4)
    assert all(set(one.left_out) == {LIAR} and LIAR not in one.num_examples for one in rounds)
    assert "times as long as is usual (optimizer@outlier)" in rounds[0].failures[LIAR]
    assert all(torch.equal(attacked[name], honest[name]) for name in honest)
    unprotected, _ = train(optimizer, times=times, rounds=4, outlier=0.0)
    assert distance(unprotected, honest) > 0.5 * distance(honest, START)


def test_honest_clients_are_untouched_a_large_one_too() -> None:
    limited, rounds = train("fedadam")
    free, _ = train("fedadam", outlier=0.0)
    assert not any(one.left_out or one.clipped or one.failures for one in rounds)
    assert all(torch.equal(limited[name], free[name]) for name in free)


def test_updates_can_be_shortened_to_a_multiple_of_the_usual_length() -> None:
    attacked, rounds = train("fedavg", times=-100.0, outlier=0.0, clip=1.0, rounds=1)
    assert LIAR in rounds[0].clipped and rounds[0].clipped[LIAR] > 40
    honest, _ = train("fedavg", rounds=1)
    assert distance(attacked, honest) < 0.2 * distance(honest, START)
    free, _ = train("fedavg", times=-100.0, outlier=0.0, rounds=1)
    assert distance(free, honest) > 3 * distance(honest, START)


def test_no_client_weighs_more_than_its_share() -> None:
    capped, rounds = train("fedavg", max_share=0.3, rounds=1)
    weights = np.minimum(COUNTS, 0.3 / 0.7 * (sum(COUNTS) - 900))
    expected = np.zeros(2)
    for client, weight in enumerate(weights):
        own = np.random.default_rng(client).normal(size=8).astype(np.float32)
        expected += weight / weights.sum() * (1.0 - 0.99 ** COUNTS[client]) * own[:2]
    assert capped["head.bias"].numpy() == pytest.approx(expected, abs=1e-3)
    assert rounds[0].num_examples[4] == 900  # what it has, and not what it weighs


def test_where_the_others_are_too_few_the_training_ends_and_names_the_liar() -> None:
    local = LocalGrid(per_client(toward_a_goal), [{}] * 3, faults={2: lying(1e6)})
    grid = ClientGrid(local, dict(zip(range(3), sorted(local.contexts), strict=True)))
    strategy = FineTuning(
        make_optimizer(OptimizerOptions()), TrainingRequest(2), dict.fromkeys(range(3)), min_clients=3
    )
    with pytest.raises(TooFewClients, match=r"2 of 3 clients sent a usable update.*client 2: its update is .* times"):
        strategy.start(grid, to_record(START), 1)
