import torch
from torch import Tensor

from fedstats_app.training.training_options import LocalOptions
from research.baselines.mlp_head import federated_average, mlp_head
from tests.research.baselines.conftest import Clients

_OPTIONS = LocalOptions(epochs=2, batch_size=8, learning_rate=0.05)


def _pooled(clients: Clients) -> tuple[Tensor, Tensor]:
    features, labels = zip(*clients.values(), strict=True)
    return torch.cat(features), torch.cat(labels)


def test_it_learns_what_no_linear_head_can() -> None:
    features = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    labels = (features.prod(dim=1) > 0).long()  # exclusive or
    model = mlp_head(2, (32, 16), 2)
    clients = [(features[part::4], labels[part::4]) for part in range(4)]
    options = LocalOptions(epochs=5, batch_size=16, momentum=0.9, learning_rate=0.1)
    federated_average(model, clients, options, num_rounds=12, fraction=1.0)
    with torch.no_grad():
        assert float((model(features).argmax(dim=1) == labels).double().mean()) > 0.95


def test_one_full_batch_step_of_all_clients_is_one_of_the_pooled_samples(clients: Clients) -> None:
    options = LocalOptions(batch_size=1000, learning_rate=0.1)
    federated, pooled = mlp_head(6, (5, 3), 4, seed=2), mlp_head(6, (5, 3), 4, seed=2)
    federated_average(federated, list(clients.values()), options, num_rounds=3, fraction=1.0)
    federated_average(pooled, [_pooled(clients)], options, num_rounds=3, fraction=1.0)
    for name, value in pooled.trained_state().items():
        assert torch.allclose(federated.trained_state()[name], value, atol=1e-6), name


def test_what_travels_is_every_parameter_to_and_from_those_drawn(clients: Clients) -> None:
    model = mlp_head(6, (5, 3), 4)
    assert sum(value.numel() for value in model.trained_state().values()) == 5 * (6 + 1) + 3 * (5 + 1) + 4 * (3 + 1)
    empty = (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    assert federated_average(model, [*clients.values(), empty], _OPTIONS, num_rounds=3, fraction=0.4) == 2 * 3 * 2
