"""GroupNorm in place of BatchNorm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstats_app.backbones.architecture import group_norm
from tests.support.networks import small_network


def test_every_batch_norm_becomes_a_group_norm_with_its_affine_map() -> None:
    network = small_network()
    made = group_norm(network, 4)
    assert [layer.num_groups for layer in made.modules() if isinstance(layer, nn.GroupNorm)] == [2, 4]  # 6 and 8
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in made.modules())
    assert not any(name.endswith("running_mean") for name in made.state_dict())
    for name, value in made.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


def test_it_normalises_each_sample_by_itself() -> None:
    layer = nn.BatchNorm2d(8, eps=0.1)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    images = torch.randn(5, 8, 4, 4)
    groups = images.reshape(5, 2, -1)
    plain = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, keepdim=True, correction=0) + 0.1).sqrt()
    expected = plain.reshape_as(images) * layer.weight[:, None, None] + layer.bias[:, None, None]
    torch.testing.assert_close(group_norm(layer, 2)(images), expected)


def test_the_given_network_stays_and_shares_nothing() -> None:
    network = small_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    made = group_norm(network)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1.0)
    assert isinstance(network[1], nn.BatchNorm2d)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_layer_in_two_places_stays_one_layer() -> None:
    layer = nn.BatchNorm2d(4)
    made = group_norm(nn.Sequential(layer, nn.ReLU(), layer))
    assert isinstance(made, nn.Sequential) and made[0] is made[2] and isinstance(made[0], nn.GroupNorm)


def test_layers_that_are_more_than_batch_norm_are_refused() -> None:
    class WithActivation(nn.BatchNorm2d):
        """As timm's, which a GroupNorm would lose the activation of."""

    with pytest.raises(ValueError, match="'1' is a WithActivation"):
        group_norm(nn.Sequential(nn.ReLU(), WithActivation(4)))
    with pytest.raises(ValueError, match="'0' is a BatchNorm1d"):
        group_norm(nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="num_groups must be at least 1, got 0"):
        group_norm(nn.ReLU(), 0)
