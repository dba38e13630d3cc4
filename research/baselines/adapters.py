"""Low-rank adapters trained by FedAvg (LoRA), and SLoRA: first a sparse update, then adapters that begin near it.

Hu et al. 2022 (LoRA); Babakniya et al. 2023, "SLoRA: federated parameter efficient fine-tuning of language models".
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.training.samples import generator

# Keep the draws apart from those of clients, batches and the hidden layer.
_ADAPTER, _MASK = 0xADA7, 0x3A5C
# A (rank, inputs) and B (outputs, rank), whose product B A is added to a layer's weight.
Factors = tuple[Tensor, Tensor]


class AdaptedLinear(nn.Module):
    """x (base + B A)^T + bias; A, B and the bias are parameters, and the base is a buffer, so it is not trained.

    Parameters
    ----------
    base : Tensor
        (outputs, inputs).
    factors : tuple of Tensor
        A (rank, inputs) and B (outputs, rank).
    bias : Tensor
        (outputs,).
    """

    def __init__(self, base: Tensor, factors: Factors, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("base", base.clone())
        self.A, self.B = (nn.Parameter(factor.clone()) for factor in factors)
        self.bias = nn.Parameter(bias.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
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
        """Product of the factors, which is added to the base weight, (outputs, inputs)."""
        base = self.get_buffer("base")
        flat = torch.zeros(base.numel()).scatter(0, self.get_buffer("positions"), self.values)
        return flat.reshape(base.shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
        return F.linear(inputs, self.get_buffer("base") + self.update, self.bias)


def start_factors(feature_dim: int, hidden: int, rank: int, *, seed: int = 0) -> Factors:
    """Draw LoRA's start: A (rank, d) from N(0, 1/d) with a seed of at least 0, and B (h, rank) = 0."""
    drawn = generator((seed,), _ADAPTER).standard_normal((rank, feature_dim)) / math.sqrt(feature_dim)
    return torch.from_numpy(drawn).float(), torch.zeros(hidden, rank)


def nearest_factors(update: Tensor, rank: int) -> Factors:
    """Factor the matrix of a rank that is nearest to an update (outputs, inputs): the start of SLoRA's second stage."""
    left, values, right = torch.linalg.svd(update, full_matrices=False)
    root = values[:rank].sqrt()
    return root.unsqueeze(1) * right[:rank], left[:, :rank] * root


def sparse_positions(size: int, density: float, *, seed: int = 0) -> Tensor:
    """Draw SLoRA's mask: sorted positions of a share of a weight's numbers, by a seed of at least 0."""
    chosen = generator((seed,), _MASK).choice(size, max(1, round(density * size)), replace=False)
    return torch.from_numpy(np.sort(chosen))
