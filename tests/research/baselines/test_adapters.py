import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.training.training_options import LocalOptions
from research.baselines.adapters import (
    AdaptedLinear,
    Adapter,
    SparseLinear,
    low_rank_start,
    mean_adapter,
    merge_exactly,
    residual,
    sparse_positions,
    start_adapter,
)
from research.baselines.mlp_head import federated_average, head_on, hidden_layer
from tests.research.baselines.conftest import Clients

_OPTIONS = LocalOptions(epochs=2, batch_size=8, learning_rate=0.05)


def _adapters(number: int, rank: int, seed: int) -> list[Adapter]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [Adapter(drawn(rank, 7), drawn(9, rank)) for _ in range(number)]


@settings(deadline=None, max_examples=25)
@given(number=st.integers(1, 4), rank=st.integers(1, 3), seed=st.integers(0, 99))
def test_with_the_residual_products_are_averaged_exactly(number: int, rank: int, seed: int) -> None:
    adapters, shares = _adapters(number, rank, seed), [(k + 1) / (number * (number + 1) / 2) for k in range(number)]
    expected = sum((share * one.product for share, one in zip(shares, adapters, strict=True)), torch.zeros(9, 7))
    rest = residual(adapters, shares)
    assert torch.allclose(mean_adapter(adapters, shares).product + rest, expected, atol=1e-12)
    assert int(torch.linalg.matrix_rank(rest, rtol=1e-9)) <= number * rank
    if number == 1:
        assert not rest.abs().max() > 1e-12
    else:
        assert float(rest.abs().max()) > 1e-3  # what the naive aggregation loses


def test_the_best_adapter_keeps_the_largest_singular_values() -> None:
    update = _adapters(1, 5, 0)[0].product
    exact, best = low_rank_start(update, 5), low_rank_start(update, 2)
    assert torch.allclose(exact.product, update, atol=1e-12)
    values = torch.linalg.svdvals(update)
    assert float((update - best.product).norm()) == pytest.approx(float(values[2:].norm()))
    for rank in (0, 8):
        with pytest.raises(ValueError, match=f"rank must be between 1 and 7, got {rank}"):
            low_rank_start(update, rank)


def test_a_merged_model_is_the_mean_of_the_clients_weights(clients: Clients) -> None:
    base, adapter = hidden_layer(6, 5, 0), start_adapter(6, 5, 2)
    model = head_on(AdaptedLinear(base, adapter, torch.zeros(5)), (torch.zeros(4, 5), torch.zeros(4)))
    inputs = clients[1][0]
    with torch.no_grad():  # B is 0 at the start
        assert torch.equal(model.backbone(inputs), torch.relu(inputs @ base.T))  # type: ignore[misc]
    states = []
    for factor in (1.0, 2.0):
        state = {name: value + factor for name, value in model.trained_state().items()}
        states.append(state)
    weights = [state["backbone.0.B"] @ state["backbone.0.A"] + base for state in states]
    merge_exactly(model, states, [0.25, 0.75])
    layer = model.get_submodule("backbone.0")
    assert isinstance(layer, AdaptedLinear)
    merged = layer.get_buffer("base") + layer.B @ layer.A
    assert torch.allclose(merged, 0.25 * weights[0] + 0.75 * weights[1], atol=1e-5)


def test_only_adapters_bias_and_head_travel_and_the_base_stays(clients: Clients) -> None:
    base = hidden_layer(6, 5, 0)
    layer = AdaptedLinear(base, start_adapter(6, 5, 2), torch.zeros(5))
    model = head_on(layer, (torch.zeros(4, 5), torch.zeros(4)))
    federated_average(model, list(clients.values()), _OPTIONS, num_rounds=2, fraction=1.0)
    assert sum(value.numel() for value in model.trained_state().values()) == 2 * (6 + 5) + 5 + 4 * (5 + 1)
    assert torch.equal(model.get_submodule("backbone.0").get_buffer("base"), base)
    exact = head_on(layer, (torch.zeros(4, 5), torch.zeros(4)))
    federated_average(exact, list(clients.values()), _OPTIONS, num_rounds=2, fraction=1.0, merge=merge_exactly)
    assert not torch.equal(exact.get_submodule("backbone.0").get_buffer("base"), base)


def test_the_sparse_stage_moves_its_positions_alone(clients: Clients) -> None:
    base, positions = hidden_layer(6, 5, 0), sparse_positions(30, 0.2)
    assert len(set(positions.tolist())) == 6
    model = head_on(SparseLinear(base, positions, torch.zeros(5)), (torch.zeros(4, 5), torch.zeros(4)))
    federated_average(model, list(clients.values()), _OPTIONS, num_rounds=3, fraction=1.0)
    layer = model.get_submodule("backbone.0")
    assert isinstance(layer, SparseLinear)
    moved = torch.nonzero(layer.update.flatten())[:, 0]
    assert set(moved.tolist()) <= set(positions.tolist()) and len(moved) > 2
    assert model.trained_state()["backbone.0.values"].shape == (6,)
