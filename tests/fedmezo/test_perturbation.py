"""Which parameters are tuned, and the model where they are perturbed."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedstats_app.fedmezo.directions import Directions, Probe
from fedstats_app.fedmezo.perturbation import Perturbation, check_reading, tuned_names
from fedstats_app.training.model import TunedModel
from tests.support.compare import same_bits
from tests.support.networks import HEAD as LINEAR_HEAD
from tests.support.networks import numbers, seeded, small_network

PROBE = Probe(11, 1, 0.05, Directions("gaussian"))


class Tied(nn.Module):
    """Two layers with one matrix, as input and output embeddings of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 6), nn.Linear(6, 20)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embedding(tokens).mean(1))


class Lists(nn.Module):
    """Parameters in containers, which read them as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.several = nn.ParameterList([nn.Parameter(numbers(4, 4)), nn.Parameter(numbers(4, 4))])
        self.named = nn.ParameterDict({"last": nn.Parameter(numbers(4, 3))})

    def forward(self, inputs: Tensor) -> Tensor:
        for matrix in self.several:
            inputs = torch.tanh(inputs @ matrix)
        return inputs @ self.named["last"]


class Recurrent(nn.Module):
    """An LSTM keeps its weights in a list of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.lstm(inputs)[0][:, -1])


def transformer(layers: int = 2) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, layers), nn.Flatten(), nn.Linear(80, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(4, 3), numbers(5, 4)),
    "convolutions": (small_network, numbers(5, 3, 8, 8)),
    "transformer": (transformer, numbers(3, 5, 16)),
    "tied": (Tied, torch.arange(12).view(3, 4)),
    "lists": (Lists, numbers(5, 4)),
    "recurrent": (Recurrent, numbers(3, 5, 4)),
}


@pytest.fixture(params=["read", "copy"])
def how(request: pytest.FixtureRequest) -> Any:
    return request.param


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def literal(model: nn.Module, names: list[str], probe: Probe, sign: int, inputs: Tensor) -> Tensor:
    """What torch makes of a fully perturbed copy."""
    parameters = dict(model.named_parameters())
    replaced = {name: probe.perturbed(parameters[name], name, sign) for name in names}
    with torch.no_grad():
        return functional_call(model, replaced, (inputs,))


def evaluated(perturbation: Perturbation, inputs: Tensor, probe: Probe = PROBE, sign: int = 1) -> Tensor:
    with perturbation.at(probe, sign):
        return perturbation(inputs)


@contextlib.contextmanager
def attention_path(fast: bool) -> Iterator[None]:
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def everything_about(model: nn.Module) -> list[Any]:
    """What must be the same afterwards: objects, names, order, places in memory, flags, modes."""
    parameters = [(name, id(value), value.data_ptr(), value.requires_grad) for name, value in model.named_parameters()]
    modules = [(type(module), id(module._parameters), module.training) for module in model.modules()]
    return [parameters, modules, list(model.state_dict())]


@pytest.mark.parametrize("kind", NETWORKS)
def test_logits_are_those_of_a_perturbed_copy(kind: str, how: Any) -> None:
    make, inputs = NETWORKS[kind]
    model = seeded(make)
    before, values = everything_about(model), {name: value.clone() for name, value in model.state_dict().items()}
    expected = literal(model, names_of(model), PROBE, -1, inputs)
    made = evaluated(Perturbation(model, names_of(model), how=how), inputs, sign=-1)
    assert same_bits(made, expected) and not made.requires_grad
    assert not torch.allclose(made, model(inputs)) and everything_about(model) == before
    assert all(same_bits(value, values[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("fast", [True, False])
def test_both_paths_of_attention_are_perturbed(monkeypatch: pytest.MonkeyPatch, fast: bool, how: Any) -> None:
    """The fast path reads the weights of a whole layer, and an output projection that nobody calls."""
    used = []
    kernel = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: used.append(1) or kernel(*given))
    model, inputs = seeded(transformer), numbers(3, 5, 16)
    with attention_path(fast):
        expected = literal(model, names_of(model), PROBE, 1, inputs)
        used.clear()
        assert same_bits(evaluated(Perturbation(model, names_of(model), how=how), inputs), expected)
    assert len(used) == (2 if fast else 0)


def test_what_is_not_named_stays(how: Any) -> None:
    chosen = ["1.bias", "0.self_attn.out_proj.weight"]
    layer = seeded(lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
    model = nn.Sequential(layer, nn.Linear(16, 3)).eval()
    made = evaluated(Perturbation(model, chosen, how=how), numbers(3, 5, 16))
    assert same_bits(made, literal(model, chosen, PROBE, 1, numbers(3, 5, 16)))


def test_a_perturbed_tensor_lives_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(lambda: nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))))
    living: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most, made = [0], Probe.perturbed

    def counted(self: Probe, parameter: Tensor, name: str, sign: int) -> Tensor:
        gc.collect()
        most[0] = max(most[0], len(living) + 1)
        tensor = made(self, parameter, name, sign)
        living.add(tensor)
        return tensor

    monkeypatch.setattr(Probe, "perturbed", counted)
    evaluated(Perturbation(model, names_of(model), how="read"), numbers(5, 64))
    assert most == [1] and len(living) == 0


class Interrupted(Exception):
    pass


def test_after_an_exception_everything_is_as_before(how: Any) -> None:
    model = seeded(transformer).train()
    before = everything_about(model)
    perturbation = Perturbation(model, names_of(model), how=how)
    with pytest.raises(Interrupted), perturbation.at(PROBE, 1):
        assert not model.training
        raise Interrupted
    assert everything_about(model) == before and model.training


# How


class Captured(nn.Module):
    """A reference beside the attribute, which torch.func.functional_call does not see either."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.weights = [self.layer.weight]

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weights[0].T + self.layer.bias


class Listed(nn.Module):
    """Reads what parameters() lists."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ next(self.layer.parameters()).T


@pytest.mark.parametrize("make", [Captured, Listed])
def test_a_model_that_reads_otherwise_is_found_and_gets_a_copy(make: Callable[[], nn.Module]) -> None:
    model, inputs = seeded(make), numbers(5, 4)
    before = everything_about(model)
    perturbation = Perturbation(model, names_of(model), how="read")
    message = check_reading(perturbation, inputs)
    assert "does not read its parameters as attributes" in message and "tuned parameters are copied" in message
    assert perturbation.how == "copy" and everything_about(model) == before
    parameters = {name: PROBE.perturbed(value, name, -1) for name, value in model.named_parameters()}
    expected = inputs @ next(value for name, value in parameters.items() if name.endswith("weight")).T
    expected += sum(value for name, value in parameters.items() if name.endswith("bias"))
    assert torch.allclose(evaluated(perturbation, inputs, sign=-1), expected, atol=1e-6)
    assert everything_about(model) == before


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_model_that_reads_attributes_passes_the_check(kind: str) -> None:
    make, inputs = NETWORKS[kind]
    model = seeded(make)
    perturbation = Perturbation(model, names_of(model), how="read")
    assert (check_reading(perturbation, inputs), perturbation.how) == ("", "read")


# What is refused


HEAD = {"head.weight", "head.bias"}
NORMS = {"backbone.1.weight", "backbone.1.bias", "backbone.5.weight", "backbone.5.bias"}


@pytest.fixture
def model(network: nn.Module) -> TunedModel:
    """Convolutions without, BatchNorm with a bias."""
    return TunedModel(LINEAR_HEAD, backbone=network, tune="full")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("head", HEAD),
        ("full", {"backbone.0.weight", "backbone.4.weight"} | NORMS | HEAD),
        ("bias", {"backbone.1.bias", "backbone.5.bias"} | HEAD),
        ("norm", NORMS | HEAD),
        ("names:backbone.0.weight", {"backbone.0.weight"}),
        ("names: backbone.?.weight , head.bias", {f"backbone.{k}.weight" for k in (0, 1, 4, 5)} | {"head.bias"}),
    ],
)
def test_kinds(model: TunedModel, what: str, expected: set[str]) -> None:
    made = tuned_names(model, what)
    assert set(made) == expected and list(made) == [name for name, _ in model.named_parameters() if name in expected]
    assert {name for name, value in model.named_parameters() if value.requires_grad} == expected


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("prefix", "must be one of full, head, bias, norm or names:PATTERN, got 'prefix'"),
        ("names:backbone.0.*,classifier", "no parameter is called 'classifier'; the model's are backbone"),
        ("names:", "no parameter is called ''"),
    ],
)
def test_what_matches_nothing_is_refused(model: TunedModel, what: str, message: str) -> None:
    before = [value.requires_grad for value in model.parameters()]
    with pytest.raises(ValueError, match=message):
        tuned_names(model, what)
    assert [value.requires_grad for value in model.parameters()] == before


def test_a_network_whose_head_alone_has_a_bias_has_no_biases_to_tune() -> None:
    model = nn.ModuleDict({"body": nn.Linear(3, 2, bias=False), "head": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="nothing to tune by 'bias'"):
        tuned_names(model, "bias")
