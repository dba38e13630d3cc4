"""Heads that every client trained alone: averaged (one-shot FedAvg), or kept and asked together (ensemble)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead


def average_heads(heads: Sequence[LinearHead], weights: Sequence[float]) -> LinearHead:
    """Return the weighted mean of heads: one-shot FedAvg, and the ensemble that averages logits.

    The two are one head, since logits are linear in it. The weights are the clients' samples for FedAvg, and all 1 for
    FedCGS's ensemble.

    Parameters
    ----------
    heads : sequence of LinearHead
        At least one, of one shape; added in the order given.
    weights : sequence of float
        One for each, at least 0, not all 0.

    Returns
    -------
    LinearHead
        In float64; a class is present where it is in one of the heads.

    Raises
    ------
    ValueError
        If the numbers of heads and weights differ, or the weights are not as above.
    """
    shares = torch.tensor(_shares(heads, weights), dtype=torch.float64)
    weight = torch.stack([head.weight.double() for head in heads])
    bias = torch.stack([head.bias.double() for head in heads])
    present = torch.stack([head.present for head in heads]).any(dim=0)
    return LinearHead(torch.tensordot(shares, weight, 1), torch.tensordot(shares, bias, 1), present)


def ensemble_probabilities(heads: Sequence[LinearHead], weights: Sequence[float], features: Tensor) -> Tensor:
    """Return the weighted mean of the heads' probabilities; no single linear head gives it, so all must be kept.

    Parameters
    ----------
    heads, weights : sequence
        As :func:`average_heads`. A head gives a class that its client does not have what its training left it.
    features : Tensor
        (n, d).

    Returns
    -------
    Tensor
        (n, C) float64.

    Raises
    ------
    ValueError
        As :func:`average_heads`.
    """
    total = torch.zeros(len(features), heads[0].num_classes if heads else 0, dtype=torch.float64)
    for share, head in zip(_shares(heads, weights), heads, strict=True):
        total += share * head.logits(features, mask_absent=False).double().softmax(dim=1)
    return total


def _shares(heads: Sequence[LinearHead], weights: Sequence[float]) -> list[float]:
    if not heads or len(heads) != len(weights):
        raise ValueError(f"there must be one weight per head and at least one, got {len(weights)} for {len(heads)}")
    if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"weights must be at least 0, finite and not all 0, got {list(weights)[:5]}")
    return [weight / sum(weights) for weight in weights]
