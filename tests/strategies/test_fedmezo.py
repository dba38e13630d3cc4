"""FedMeZO's rounds, through its messages, against algorithm 2 of the thesis: the golden run, a rate that is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.mezo_exchange import MezoExchange
from fedstats_app.strategies.fedmezo import MezoRounds
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.mezo import MezoReply, MezoRequest, mezo_reply, read_mezo_request
from tests.support.compare import absolute_difference
from tests.support.fedmezo import Exact, Stored
from tests.support.golden import load

Answer = Callable[[MezoRequest, int], MezoReply]
FIXED: dict[str, Any] = {"weighting": "uniform", "clip": 0.0, "outlier": 0.0}


def strategy_of(answer: Answer, counts: list[int], replica: Replica, **options: Any) -> tuple[MezoRounds, ClientGrid]:
    """Return a strategy and nodes that answer as a function says, given the request and the number of the node."""

    def app(msg: Message, context: Context) -> Message:
        return mezo_reply(msg, answer(read_mezo_request(msg), context.node_id - FIRST_NODE_ID))

    grid = ClientGrid(LocalGrid(app, [{} for _ in counts]))
    clients = {FIRST_NODE_ID + node: count for node, count in enumerate(counts)}
    setup = MezoSetup(TrainingRequest(3, "probe"), num_directions=replica.num_directions)
    return MezoRounds(setup, {}, clients, replica=replica, **options), grid


def golden_replica(golden: dict[str, Tensor]) -> Replica:
    model = nn.Linear(8, 3).double()
    with torch.no_grad():
        model.weight.copy_(golden["theta0"][:24].view(3, 8))
        model.bias.copy_(golden["theta0"][24:])
    return Replica(
        model, ["weight", "bias"], num_directions=2, epsilon=float(golden["eps"]), directions=Stored(golden["Z"])
    )


@pytest.mark.parametrize(("weighting", "name"), [("uniform", "theta_uniform"), ("examples", "theta_weighted")])
def test_a_given_rate_follows_algorithm_2(weighting: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = {key: torch.from_numpy(value) for key, value in load("fedmezo").items()}
    monkeypatch.setattr(MezoExchange, "seed", lambda _, number: number - 1)  # under which the directions are stored
    mine = [(golden["clients"] == client).nonzero().squeeze(1) for client in range(5)]
    nodes = [golden_replica(golden) for _ in range(5)]

    def answer(request: MezoRequest, node: int) -> MezoReply:
        replica = nodes[node]
        replica.apply(request.updates[replica.round - request.round + 1 + len(request.updates) :])
        samples = Exact(golden["X"][mine[node]], golden["labels"][mine[node]])
        perturbation = Perturbation(replica.model, ["weight", "bias"])
        made = projected_gradients(perturbation, samples, 4, replica.probes(request.seed))
        return MezoReply(made, len(samples.labels), replica.digest())

    server = golden_replica(golden)
    options = {**FIXED, "weighting": weighting, "learning_rate": float(golden["lr"])}
    strategy, grid = strategy_of(answer, [len(one) for one in mine], server, **options)
    for number in range(1, 7):
        strategy.start(grid, num_rounds=1)
        theta = torch.cat([value.detach().reshape(-1) for value in (server.model.weight, server.model.bias)])  # type: ignore[operator]
        assert absolute_difference(theta, golden[name][number]) < 1e-11
    assert not strategy.rates


def scripted(slopes: list[float], **options: Any) -> tuple[MezoRounds, ClientGrid]:
    """Make a strategy whose three nodes all measure these slopes, round by round."""
    server = Replica(nn.Linear(2, 3).double(), ["weight", "bias"])
    return strategy_of(
        lambda request, _: MezoReply((slopes[request.round - 1],), 10, server.digest()), [10] * 3, server, **options
    )


SPIKES = [1.0, -1.0, 2.0, 1.0, -2.0, 1.0, 1.0, 3e3, -3e3, 3e3, 1.0, -1.0]


def test_a_given_rate_and_the_steps_that_follow_from_it_never_change() -> None:
    strategy, grid = scripted(SPIKES, learning_rate=0.5, **FIXED)
    strategy.start(grid, num_rounds=len(SPIKES))
    assert [update.steps for update in strategy.log] == [(0.5 * value,) for value in SPIKES]
    assert strategy.learning_rate == 0.5 and not strategy.rates


def test_a_rate_that_was_found_is_halved_and_comes_back() -> None:
    """So that the test above could fail."""
    slopes = [*SPIKES, *[1.0] * 200]
    strategy, grid = scripted(slopes, learning_rate=0.5, guarded=True, **FIXED)
    strategy.start(grid, num_rounds=len(slopes))
    assert list(strategy.rates) == [8, 9, 10, 60, 110, 160]
    assert min(strategy.rates.values()) == 0.5 / 8 and strategy.learning_rate == 0.5
    assert all(abs(update.steps[0]) <= 8.0 * 0.5 for update in strategy.log)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_is_positive_and_finite(rate: float) -> None:
    with pytest.raises(ValueError, match="learning_rate must be positive and finite, got"):
        scripted([], learning_rate=rate)
