"""A head with one hidden layer, trained by FedAvg on the frozen backbone's features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedstats_app.training.local import ExtraLoss, Sgd, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, TensorSamples, generator
from fedstats_app.training.training_options import LocalOptions

# Keeps the draws of the start and of the rounds' clients apart from those of batches.
_START, _CLIENTS = 0x1117, 0xC11E


def hidden_layer(feature_dim: int, hidden: int, seed: int) -> Tensor:
    """Return (h, d) weights from He's normal distribution, drawn from a seed of at least 0."""
    drawn = generator((seed,), _START).standard_normal((hidden, feature_dim)) * math.sqrt(2 / feature_dim)
    return torch.from_numpy(drawn).float()


def mlp_head(feature_dim: int, hidden: Sequence[int], num_classes: int, *, seed: int = 0) -> TunedModel:
    """Return a head on hidden layers with ReLU, trained whole: drawn by He's normal distribution, head and biases 0.

    Parameters
    ----------
    feature_dim, hidden, num_classes : int
        d, the widths of the layers, at least one, and C; all parameters travel.
    seed : int
        At least 0: of the layers.
    """
    layers: list[nn.Module] = []
    for place, (inputs, width) in enumerate(zip((feature_dim, *hidden), hidden, strict=False)):
        layer = nn.Linear(inputs, width)
        with torch.no_grad():
            layer.weight.copy_(hidden_layer(inputs, width, seed + place))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return head_on(nn.Sequential(*layers[:-1]), (torch.zeros(num_classes, hidden[-1]), torch.zeros(num_classes)))


def head_on(layer: nn.Module, head: tuple[Tensor, Tensor]) -> TunedModel:
    """Return a model of hidden layers, copied, and a head, weight (C, h) and bias (C,), that is trained whole."""
    return TunedModel(head, backbone=nn.Sequential(layer, nn.ReLU()), tune="full")


def federated_average(
    model: TunedModel,
    clients: Sequence[tuple[Tensor, Tensor] | Samples],
    options: LocalOptions,
    *,
    num_rounds: int,
    fraction: float,
    seed: int = 0,
    extra_loss: ExtraLoss | None = None,
    optimizer: Callable[[Sequence[nn.Parameter], LocalOptions], Any] = Sgd,
    step: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]] = lambda start, mean: mean,
    after_client: Callable[[int, dict[str, Tensor]], None] = lambda client, state: None,
    after_round: Callable[[], None] = lambda: None,
) -> int:
    """Train a model in place by FedAvg (McMahan et al. 2017): clients weigh by their samples.

    Parameters
    ----------
    model : TunedModel
        Whatever of it is trained is averaged.
    clients : sequence
        Samples, or inputs (n, ...) and labels (n,) int64, of each; those without any are never drawn.
    options : LocalOptions
        Of the clients' training.
    num_rounds : int
        R, at least 1.
    fraction : float
        Share of the clients that a round draws, in (0, 1]; at least one.
    seed : int
        At least 0; with the round it decides clients and batches.
    extra_loss, optimizer : callable
        As :func:`train_locally` takes them.
    step : callable
        From the state at the start of a round and the average of the clients' to the next.
    after_client : callable
        Is given a client's place among `clients`, and the state that it sends.
    after_round : callable
        Is called whenever the model is a round's average.

    Returns
    -------
    int
        Models that travelled, down or up.

    Raises
    ------
    Diverged
        If a client's training leaves the finite numbers.
    ValueError
        If no client has a sample, or num_rounds or fraction are not as above.
    """
    if num_rounds < 1 or not 0.0 < fraction <= 1.0:
        raise ValueError(f"num_rounds must be at least 1 and fraction in (0, 1], got {num_rounds} and {fraction}")
    own = [TensorSamples(*samples) if isinstance(samples, tuple) else samples for samples in clients]
    able = [client for client, samples in enumerate(own) if len(samples.labels)]
    if not able:
        raise ValueError(f"clients: one must have a sample, got {len(clients)} without")
    drawn = max(1, round(fraction * len(able)))
    for server_round in range(1, num_rounds + 1):
        chosen = sorted(generator((seed, server_round), _CLIENTS).choice(able, drawn, replace=False).tolist())
        total = sum(len(own[client].labels) for client in chosen)
        start = model.trained_state()
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in chosen:
            model.load_trained_state(start)
            key = (seed, client, server_round)
            train_locally(model, own[client], options, key=key, extra_loss=extra_loss, optimizer=optimizer)
            state = model.trained_state()
            after_client(client, state)
            for name, value in state.items():
                mean[name].add_(value, alpha=len(own[client].labels) / total)
        model.load_trained_state(step(start, mean))
        after_round()
    return 2 * num_rounds * drawn
