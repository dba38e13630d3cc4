import torch

from fedstats_app.training.training_options import LocalOptions
from research.baselines.adapters import AdaptedLinear, SparseLinear, sparse_positions, start_factors
from research.baselines.mlp_head import federated_average, head_on, hidden_layer
from tests.research.baselines.conftest import Clients

OPTIONS = LocalOptions(epochs=2, batch_size=8, learning_rate=0.05)
BASE = hidden_layer(6, 5, 0)
HEAD = (torch.zeros(4, 5), torch.zeros(4))


def test_only_adapters_bias_and_head_travel_and_the_base_stays(clients: Clients) -> None:
    model = head_on(AdaptedLinear(BASE, start_factors(6, 5, 2), torch.zeros(5)), HEAD)
    inputs = clients[1][0]
    with torch.no_grad():  # B is 0 at the start
        assert torch.equal(model.backbone(inputs), torch.relu(inputs @ BASE.T))  # type: ignore[misc]
    federated_average(model, list(clients.values()), OPTIONS, num_rounds=2, fraction=1.0)
    assert sum(value.numel() for value in model.trained_state().values()) == 2 * (6 + 5) + 5 + 4 * (5 + 1)
    assert torch.equal(model.get_submodule("backbone.0").get_buffer("base"), BASE)
    with torch.no_grad():
        assert not torch.equal(model.backbone(inputs), torch.relu(inputs @ BASE.T))  # type: ignore[misc]


def test_the_sparse_stage_moves_its_positions_alone(clients: Clients) -> None:
    positions = sparse_positions(30, 0.2)
    assert len(set(positions.tolist())) == 6
    model = head_on(SparseLinear(BASE, positions, torch.zeros(5)), HEAD)
    federated_average(model, list(clients.values()), OPTIONS, num_rounds=3, fraction=1.0)
    layer = model.get_submodule("backbone.0")
    assert isinstance(layer, SparseLinear)
    moved = torch.nonzero(layer.update.flatten())[:, 0]
    assert set(moved.tolist()) <= set(positions.tolist()) and len(moved) > 2
    assert model.trained_state()["backbone.0.values"].shape == (6,)
