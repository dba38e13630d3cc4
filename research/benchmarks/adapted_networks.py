"""What the benchmark of adapters trains: an MLP head on frozen features, or queries and values of a text encoder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data import Dataset
from fedstats_app.data.clients import test_split, training_set
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.training.model import TunedModel
from research.baselines.mlp_head import head_on, hidden_layer
from research.benchmarks.baselines import HIDDEN
from research.benchmarks.dist_mezo import start_of
from research.benchmarks.features import Features

Head = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Network:
    """A network of which some linear layers are trained.

    Attributes
    ----------
    layers : mapping
        From the name in the model to the layer that training starts from.
    head : tuple of Tensor
        Weight (C, h) and bias (C,) that training starts from.
    build : callable
        From modules in place of the layers, and a head, to the model in which they and the head are trained.
    train, test : Tensor
        Inputs, float32.
    """

    layers: Mapping[str, nn.Linear]
    head: Head
    build: Callable[[Mapping[str, nn.Module], Head], TunedModel]
    train: Tensor
    test: Tensor


def mlp_network(data: Features, seed: int) -> Network:
    """Return an MLP head on frozen features: its hidden layer starts as random features, the head as 0."""
    layer = nn.Linear(data.train.shape[1], HIDDEN)
    with torch.no_grad():
        layer.weight.copy_(hidden_layer(data.train.shape[1], HIDDEN, seed))
        layer.bias.zero_()
    head = (torch.zeros(data.num_classes, HIDDEN), torch.zeros(data.num_classes))
    name = "backbone.0"
    return Network({name: layer}, head, lambda layers, start: head_on(layers[name], start), data.train, data.test)


class _Tokens(nn.Module):
    """A text encoder that takes its token ids as float32, which has them exactly: what samples in memory are."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.encoder(tokens.long())
        return features


def text_network(config: AppConfig, data: Features, used: Tensor) -> Network:
    """Return a text encoder under FedNCM's head of the clients' texts, at its best temperature; all else stays."""
    backbone = loaded_backbone(config.backbone_for(own_data=False), NodeConfig("", 0, 1).engine_root(config.cache))
    encoder = _Tokens(copy.deepcopy(backbone.module))
    layers = {
        f"backbone.{name}": module
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in ("query", "value")
    }
    if not layers:
        raise ValueError(f"backbone {backbone.name}: has no linear layers called query and value")
    start = start_of(data.train[used], data.train_labels[used], data.num_classes)

    def build(own: Mapping[str, nn.Module], head: Head) -> TunedModel:
        changed = copy.deepcopy(encoder)
        for name, module in own.items():
            parent, _, child = name.removeprefix("backbone.").rpartition(".")
            setattr(changed.get_submodule(parent), child, module)
        model = TunedModel(head, backbone=changed, tune="full")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head.") or name.rpartition(".")[0] in own)
        return model

    test = test_split(config.data.dataset, config.data)
    assert test is not None  # features were made of it
    inputs = [_tokens(split, backbone.transform) for split in (training_set(config.data), test)]
    width = max(one.shape[-1] for one in inputs)
    train, tested = (F.pad(one, (0, width - one.shape[-1])) for one in inputs)
    return Network(layers, (start.weight.float(), start.bias.float()), build, train, tested)


def _tokens(split: Dataset, transform: Callable[..., Tensor]) -> Tensor:
    """Return (n, 2, T) token ids and masks, padded to the longest text."""
    tokens = [transform(split.source.open(int(index))) for index in np.arange(len(split))]
    width = max(one.shape[-1] for one in tokens)
    return torch.stack([F.pad(one, (0, width - one.shape[-1])) for one in tokens]).float()


def network_of(config: AppConfig, data: Features, used: Tensor, seed: int) -> Network:
    """Return the network of a run's backbone; some of the training samples are used."""
    return text_network(config, data, used) if config.backbone.takes_text else mlp_network(data, seed)
