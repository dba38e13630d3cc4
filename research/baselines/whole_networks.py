"""Whole networks that clients train alone and send once: one-shot FedAvg and the ensemble of networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples, generator
from fedstats_app.training.training_options import LocalOptions
from research.baselines.batch_norm import AdaptingModel

_START = 0xC22


def small_cnn(num_classes: int, channels: int, side: int, seed: int) -> TunedModel:
    """Return DENSE's network for Fashion-MNIST: two 5 x 5 convolutions with BatchNorm and pooling, and a linear head.

    Parameters
    ----------
    num_classes, channels, side : int
        C, and the size of the inputs, (n, channels, side, side); the side is a multiple of 4.
    seed : int
        At least 0; the weights are He's normal ones.
    """
    draw = generator((seed,), _START)

    def he(*shape: int) -> Tensor:
        return torch.from_numpy(draw.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))).float()

    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 16), (16, 32)):
        with torch.random.fork_rng(devices=[]):
            convolution = nn.Conv2d(inputs, outputs, 5, padding=2)
        with torch.no_grad():
            convolution.weight.copy_(he(outputs, inputs, 5, 5))
            convolution.bias.zero_()  # type: ignore[union-attr]  # it has one
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    head = he(num_classes, 32 * (side // 4) ** 2), torch.zeros(num_classes)
    return AdaptingModel(head, nn.Sequential(*layers, nn.Flatten()), "averaged")


def trained_networks(
    start: TunedModel, clients: Sequence[tuple[Tensor, Tensor]], options: LocalOptions, *, seed: int = 0
) -> list[TunedModel]:
    """Train a copy of the start on every client's inputs and labels, those without samples left out."""
    networks = []
    for client, (inputs, labels) in enumerate(clients):
        if len(labels):
            network = copy.deepcopy(start)
            train_locally(network, TensorSamples(inputs, labels), options, key=(seed, client))
            networks.append(network)
    return networks


def average_of(networks: Sequence[TunedModel], weights: Sequence[float]) -> TunedModel:
    """Average parameters and running statistics: FedAvg (McMahan et al. 2017) in one round.

    Parameters
    ----------
    networks : sequence of TunedModel
        Of one kind, at least one.
    weights : sequence of float
        Above 0, the clients' numbers of samples, say.
    """
    shares = [weight / math.fsum(weights) for weight in weights]
    states = [network.trained_state() for network in networks]
    mean = {
        name: torch.stack([share * state[name] for share, state in zip(shares, states, strict=True)]).sum(dim=0)
        for name in states[0]
    }
    average = copy.deepcopy(networks[0])
    average.load_trained_state(mean)
    return average


class Ensemble:
    """Networks of one kind that answer together: copies in evaluation mode.

    One after the other: on a CPU this takes half the time of `torch.func.vmap` over their stacked weights.

    Parameters
    ----------
    networks : sequence of TunedModel
        At least one, on one device; they stay as they are.
    """

    def __init__(self, networks: Sequence[TunedModel]) -> None:
        self._networks = [copy.deepcopy(network).requires_grad_(False).eval() for network in networks]
        self.size = len(networks)

    def logits(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """Average the networks' (n, C) logits with (K,) weights; all alike without, or where all weights are 0."""
        return self._mean(torch.stack([network(inputs) for network in self._networks]), weights)

    def logits_and_distance(self, inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Give those logits, and how far the inputs of all BatchNorm layers are from their running statistics.

        That is the mean over networks of the sum over layers of ||mean - running mean|| and ||variance - running
        variance||; 0 without such layers.
        """
        apart = [torch.zeros((), device=inputs.device)]

        def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            values = given[0].transpose(0, 1).flatten(1)
            for own, running in ((values.mean(1), "running_mean"), (values.var(1, correction=0), "running_var")):
                apart.append(torch.linalg.vector_norm(own - layer.get_buffer(running)))

        layers = [
            module for network in self._networks for module in network.modules() if isinstance(module, nn.BatchNorm2d)
        ]
        hooks = [layer.register_forward_pre_hook(note) for layer in layers]
        try:
            logits = self.logits(inputs, weights)
        finally:
            for hook in hooks:
                hook.remove()
        return logits, torch.stack(apart).sum() / self.size

    @staticmethod
    def _mean(logits: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            return logits.mean(dim=0)
        shares = torch.where(weights.any(), weights / weights.sum().clamp(min=1e-38), 1.0 / len(weights))
        return (logits * shares[:, None, None]).sum(dim=0)
