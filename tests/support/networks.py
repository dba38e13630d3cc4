"""A network of some hundred parameters with everything that matters in training."""

from __future__ import annotations

import torch
from torch import nn


def small_network() -> nn.Sequential:
    """Images (B, 3, 8, 8) to features (B, 8), with BatchNorm whose statistics are not trivial, and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Conv2d(6, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        made(torch.randn(64, 3, 8, 8))  # fills the running statistics
        for layer in (made[1], made[5]):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
    return made.eval().requires_grad_(False)
