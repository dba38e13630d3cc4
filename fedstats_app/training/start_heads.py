"""Heads to start training from that no statistics are needed for: what the closed-form ones are compared with."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedstats_app.heads import LinearHead, SolveReport

# Keeps this draw apart from the others that a run's seed decides.
_STREAM = 0x4EAD


def random_head(num_classes: int, feature_dim: int, seed: int, *, bias: bool = True) -> LinearHead:
    """Return the head that a linear layer of torch starts with: uniform in +-1/sqrt(d), the same for all clients.

    Parameters
    ----------
    num_classes, feature_dim : int
        C and d.
    seed : int
        Draws it.
    bias : bool
        Whether the bias is drawn too; else it is zero, as in FedCOF's bias-free layers.

    Returns
    -------
    LinearHead
        float32.
    """
    draw = np.random.default_rng([seed, _STREAM])
    bound = 1 / math.sqrt(feature_dim)
    weight = torch.from_numpy(draw.uniform(-bound, bound, (num_classes, feature_dim))).float()
    offsets = torch.from_numpy(draw.uniform(-bound, bound, num_classes)).float()
    report = SolveReport(regulariser=f"random, seed {seed}")
    return LinearHead(weight, offsets if bias else torch.zeros(num_classes), report=report)


def zero_head(num_classes: int, feature_dim: int) -> LinearHead:
    """Return the head that says nothing: all logits are zero."""
    return LinearHead(
        torch.zeros(num_classes, feature_dim), torch.zeros(num_classes), report=SolveReport(regulariser="zero")
    )
