"""FedMeZO's rounds, through its messages, against algorithm 2 of the thesis."""

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedstats_app.fedmezo.average import Weighting
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.mezo_exchange import MezoExchange
from fedstats_app.strategies.fedmezo import MezoRounds
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.mezo import MezoReply, mezo_reply, read_mezo_request
from tests.support.compare import absolute_difference
from tests.support.fedmezo import Exact, Stored
from tests.support.golden import load


def replica_of(golden: dict[str, Tensor]) -> Replica:
    model = nn.Linear(8, 3).double()
    with torch.no_grad():
        model.weight.copy_(golden["theta0"][:24].view(3, 8))
        model.bias.copy_(golden["theta0"][24:])
    options = {"num_directions": 2, "epsilon": float(golden["eps"]), "directions": Stored(golden["Z"])}
    return Replica(model, ["weight", "bias"], **options)


@pytest.mark.parametrize(
    ("weighting", "number", "name"),
    [("uniform", 5, "theta_uniform"), ("examples", 5, "theta_weighted"), ("examples", 1, "theta_central")],
)
def test_rounds_are_golden(weighting: Weighting, number: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = {key: torch.from_numpy(value) for key, value in load("fedmezo").items()}
    monkeypatch.setattr(MezoExchange, "seed", lambda _, number: number - 1)  # under which the directions are stored
    mine = [(golden["clients"] % number == client).nonzero().squeeze(1) for client in range(number)]
    nodes = [replica_of(golden) for _ in mine]

    def app(msg: Message, context: Context) -> Message:
        request, node = read_mezo_request(msg), context.node_id - FIRST_NODE_ID
        replica = nodes[node]
        replica.apply(request.updates[replica.round - request.round + 1 + len(request.updates) :])
        samples = Exact(golden["X"][mine[node]], golden["labels"][mine[node]])
        perturbation = Perturbation(replica.model, ["weight", "bias"])
        scalars = projected_gradients(perturbation, samples, 4, replica.probes(request.seed))
        return mezo_reply(msg, MezoReply(scalars, len(samples.labels), replica.digest()))

    clients = {FIRST_NODE_ID + node: len(one) for node, one in enumerate(mine)}
    setup, rate = MezoSetup(TrainingRequest(3, "probe"), num_directions=2), float(golden["lr"])
    strategy = MezoRounds(setup, clients, learning_rate=rate, weighting=weighting, clip=0.0, max_share=1.0)
    server = replica_of(golden)
    strategy.start_from({}, server)
    for server_round in range(1, 7):
        strategy.start(ClientGrid(LocalGrid(app, [{} for _ in mine])), num_rounds=1)
        theta = torch.cat([value.detach().reshape(-1) for value in (server.model.weight, server.model.bias)])  # type: ignore[operator]
        assert absolute_difference(theta, golden[name][server_round]) < 1e-11
