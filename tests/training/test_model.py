import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from tests.support.compare import relative_difference, same_bits
from tests.support.networks import HEAD

IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(9))


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


# Logits


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_logits_are_the_heads_over_the_temperature(network: nn.Module, temperature: float) -> None:
    model = TunedModel(HEAD, backbone=network, tune="full", temperature=temperature)
    expected = HEAD.logits(network(IMAGES)) / temperature
    assert relative_difference(model(IMAGES), expected) < 1e-5
    assert relative_difference(model.logits(model.features(IMAGES)), expected) < 1e-5
    assert model(IMAGES).dtype == torch.float32


def test_an_infinite_bias_of_an_absent_class_becomes_zero() -> None:
    absent = LinearHead(HEAD.weight, torch.tensor([0.5, -torch.inf, -1.0]), torch.tensor([True, False, True]))
    assert TunedModel(absent, tune="probe", tune_bias=False).head.bias.tolist() == [0.5, 0.0, -1.0]
    assert absent.bias[1] == -torch.inf


# What is trained, and what travels


@pytest.mark.parametrize(
    ("tune", "tune_bias", "trained"),
    [
        ("full", True, {"backbone", "head.weight", "head.bias"}),
        ("full", False, {"backbone", "head.weight"}),
        ("probe", True, {"head.weight", "head.bias"}),
        ("probe", False, {"head.weight"}),
        ("features", True, {"backbone"}),
    ],
)
def test_only_what_is_trained_travels(network: nn.Module, tune: Any, tune_bias: bool, trained: set[str]) -> None:
    model = TunedModel(HEAD, backbone=network, tune=tune, tune_bias=tune_bias)
    expected = {name for name in trained if name != "backbone"}
    if "backbone" in trained:
        expected |= {f"backbone.{name}" for name, _ in network.named_parameters()}
    state = model.trained_state()
    assert list(state) == sorted(expected)
    assert {name for name, value in model.named_parameters() if value.requires_grad} == expected
    assert all(value.dtype == torch.float32 and not value.requires_grad for value in state.values())


def test_state_goes_round_and_is_a_copy(network: nn.Module) -> None:
    first, second = (TunedModel(HEAD, backbone=network, tune="full") for _ in range(2))
    with torch.no_grad():
        for value in first.parameters():
            value.add_(0.25)
    state = first.trained_state()
    assert not same_bits(second(IMAGES), first(IMAGES))
    second.load_trained_state(state)
    assert same_bits(second(IMAGES), first(IMAGES))
    state["head.weight"].zero_()
    assert first.head.weight.abs().min() > 0 and second.head.weight.abs().min() > 0


def test_state_of_another_memory_layout_is_the_same(network: nn.Module) -> None:
    plain = TunedModel(HEAD, backbone=network, tune="full").trained_state()
    laid_out = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = TunedModel(HEAD, backbone=laid_out, tune="full").trained_state()
    assert all(value.is_contiguous() and same_bits(value, plain[name]) for name, value in state.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.bias"), "lacks head.bias"),
        (lambda state: state.update(extra=torch.ones(1)), "has extra, which this model does not train"),
        (lambda state: state.update({"head.bias": torch.ones(4)}), r"head.bias must have shape \(3,\), got \(4,\)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    model = TunedModel(HEAD, tune="probe")
    state = {name: value + 1 for name, value in model.trained_state().items()}
    before = snapshot(model)
    change(state)
    with pytest.raises(ValueError, match=message):
        model.load_trained_state(state)
    assert all(same_bits(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("tune", ["full", "probe", "features"])
def test_the_given_backbone_never_changes(network: nn.Module, tune: Any) -> None:
    before, flags = snapshot(network), [layer.training for layer in network.modules()]
    model = TunedModel(HEAD, backbone=network, tune=tune).train()
    model(IMAGES).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(same_bits(value, before[name]) for name, value in network.state_dict().items())
    assert [layer.training for layer in network.modules()] == flags
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in network.parameters())


# BatchNorm


def test_frozen_statistics_are_used_and_kept_and_the_affine_map_is_trained(network: nn.Module) -> None:
    model = TunedModel(HEAD, backbone=network, tune="full").train()
    before = snapshot(model)
    features = model.features(IMAGES)
    assert same_bits(features.detach(), network(IMAGES))
    features.square().sum().backward()
    assert model.backbone[1].weight.grad.abs().max() > 0  # type: ignore[index]
    assert all(same_bits(value, before[name]) for name, value in model.state_dict().items())
