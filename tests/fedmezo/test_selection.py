from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstats_app.fedmezo.perturbation import tuned_names
from fedstats_app.training.model import TunedModel
from tests.support.networks import HEAD as LINEAR_HEAD

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
        ("names:*", {"backbone.0.weight", "backbone.4.weight"} | NORMS | HEAD),
    ],
)
def test_kinds(model: TunedModel, what: str, expected: set[str]) -> None:
    made = tuned_names(model, what)
    assert set(made) == expected
    assert list(made) == [name for name, _ in model.named_parameters() if name in expected]
    assert {name for name, value in model.named_parameters() if value.requires_grad} == expected


def test_a_choice_replaces_the_one_before(model: TunedModel) -> None:
    tuned_names(model, "head")
    tuned_names(model, "names:backbone.0.weight")
    assert [name for name, value in model.named_parameters() if value.requires_grad] == ["backbone.0.weight"]


def test_other_normalisations_are_known_by_their_names() -> None:
    class SomeRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

    layers = {"norm": nn.LayerNorm(4), "other": SomeRMSNorm(), "group": nn.GroupNorm(2, 4)}
    model = nn.ModuleDict({**layers, "head": nn.Linear(2, 2)})
    assert set(tuned_names(model, "norm")) == {
        *("norm.weight", "norm.bias", "other.scale", "group.weight", "group.bias"),
        *HEAD,
    }


def test_a_model_without_a_head_has_kinds_too() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    assert tuned_names(model, "bias") == ("0.bias", "1.bias") and tuned_names(model, "norm") == ("1.weight", "1.bias")


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


def test_errors_show_some_names_of_many() -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(50)))
    with pytest.raises(ValueError, match=r"are 0\.weight, 0\.bias, 1\.weight, 1\.bias, \.\.\., 48.*49\.bias$"):
        tuned_names(model, "head")
