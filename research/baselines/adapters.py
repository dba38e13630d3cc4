"""Low-rank adapters trained by FedAvg: averaged as they are, or so that their products are averaged exactly; SLoRA.

Hu et al. 2022 (LoRA); Singhal et al. 2024, "FedEx-LoRA: exact aggregation for federated and efficient fine-tuning of
foundation models"; Babakniya et al. 2023, "SLoRA: federated parameter efficient fine-tuning of language models".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import generator
from research.baselines.mlp_head import average

# Keep the draws apart from those of clients, batches and the hidden layer.
_ADAPTER, _MASK = 0xADA7, 0x3A5C


class AdaptedLinear(nn.Module):
    """x (base + B A)^T + bias; A, B and the bias are parameters, and the base is a buffer, so it is not trained.

    Parameters
    ----------
    base : Tensor
        (outputs, inputs).
    adapter : Adapter
        Of these shapes.
    bias : Tensor
        (outputs,).
    """

    def __init__(self, base: Tensor, adapter: Adapter, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("base", base.clone())
        self.A, self.B = nn.Parameter(adapter.A.clone()), nn.Parameter(adapter.B.clone())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, outputs) of (n, inputs)."""
        base = self.get_buffer("base")
        return F.linear(inputs, base, self.bias) + F.linear(F.linear(inputs, self.A), self.B)


class SparseLinear(nn.Module):
    """x (base + sparse update)^T + bias, the update at fixed positions: SLoRA's first stage, of which only it travels.

    Parameters
    ----------
    base : Tensor
        (outputs, inputs); a buffer.
    positions : Tensor
        (k,) int64 into the flattened base, each once.
    bias : Tensor
        (outputs,).
    """

    def __init__(self, base: Tensor, positions: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("base", base.clone())
        self.register_buffer("positions", positions)
        self.values, self.bias = nn.Parameter(torch.zeros(len(positions))), nn.Parameter(bias.clone())

    @property
    def update(self) -> Tensor:
        """What is added to the base, (outputs, inputs)."""
        base = self.get_buffer("base")
        flat = torch.zeros(base.numel()).scatter(0, self.get_buffer("positions"), self.values)
        return flat.reshape(base.shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, outputs) of (n, inputs)."""
        return F.linear(inputs, self.get_buffer("base") + self.update, self.bias)


@dataclass(frozen=True, eq=False)
class Adapter:
    """The product B A that is added to a layer's weight.

    Attributes
    ----------
    A : Tensor
        (rank, inputs).
    B : Tensor
        (outputs, rank).
    """

    A: Tensor
    B: Tensor

    @property
    def product(self) -> Tensor:
        """What is added, (outputs, inputs)."""
        return self.B @ self.A


def mean_adapter(adapters: Sequence[Adapter], shares: Sequence[float]) -> Adapter:
    """Return the means of A and of B: the naive aggregation, whose product is not the mean of the products.

    Parameters
    ----------
    adapters : sequence of Adapter
        At least one, of one shape.
    shares : sequence of float
        One for each; they add up to 1.
    """
    return Adapter(
        _mean([one.A for one in adapters], shares),
        _mean([one.B for one in adapters], shares),
    )


def residual(adapters: Sequence[Adapter], shares: Sequence[float]) -> Tensor:
    """Compute FedEx-LoRA's residual, added to the base: the mean of the products less the product of the means.

    Its rank is at most the number of clients times that of the adapters.

    Parameters
    ----------
    adapters, shares : sequence
        As :func:`mean_adapter`.

    Returns
    -------
    Tensor
        (outputs, inputs).
    """
    return _mean([one.product for one in adapters], shares) - mean_adapter(adapters, shares).product


def low_rank_start(update: Tensor, rank: int) -> Adapter:
    """Return the adapter nearest to an update of a weight: how SLoRA begins its second stage.

    Parameters
    ----------
    update : Tensor
        (outputs, inputs).
    rank : int
        Between 1 and the smaller side.

    Raises
    ------
    ValueError
        If the rank is another.
    """
    if not 1 <= rank <= min(update.shape):
        raise ValueError(f"rank must be between 1 and {min(update.shape)}, got {rank}")
    left, values, right = torch.linalg.svd(update, full_matrices=False)
    root = values[:rank].sqrt()
    return Adapter(root.unsqueeze(1) * right[:rank], left[:, :rank] * root)


def merge_exactly(model: TunedModel, states: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> None:
    """Average what clients trained, and add to every base what its adapters' products lack (FedEx-LoRA)."""
    for name, layer in model.named_modules():
        if isinstance(layer, AdaptedLinear):
            adapters = [Adapter(state[f"{name}.A"], state[f"{name}.B"]) for state in states]
            layer.get_buffer("base").add_(residual(adapters, shares))
    average(model, states, shares)


def start_adapter(feature_dim: int, hidden: int, rank: int, *, seed: int = 0) -> Adapter:
    """Return LoRA's start: A (rank, d) from N(0, 1/d), drawn from a seed of at least 0, and B (h, rank) = 0."""
    drawn = generator((seed,), _ADAPTER).standard_normal((rank, feature_dim)) / math.sqrt(feature_dim)
    return Adapter(torch.from_numpy(drawn).float(), torch.zeros(hidden, rank))


def sparse_positions(size: int, density: float, *, seed: int = 0) -> Tensor:
    """Return SLoRA's mask: sorted positions of a share of a weight's numbers, drawn from a seed of at least 0."""
    chosen = generator((seed,), _MASK).choice(size, max(1, round(density * size)), replace=False)
    return torch.from_numpy(np.sort(chosen))


def _mean(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    weights = torch.tensor(shares, dtype=values[0].dtype)
    mean: Tensor = torch.tensordot(weights, torch.stack(list(values)), 1)
    return mean
