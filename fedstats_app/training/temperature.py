"""How sure a head is to be before it is trained: the loss at many temperatures, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, check_labels, reproducible_kernels

# 2^-8, 2^-7.5, ..., 2^8.
TEMPERATURES: tuple[float, ...] = tuple(math.pow(2.0, step / 2) for step in range(-16, 17))

# Nats: what is given up for a loss that still bends, where the least loss is that of the lowest temperature.
SURE_ENOUGH = 0.01


def losses_by_temperature(
    model: TunedModel, samples: Samples, batch_size: int, *, largest: float = math.inf
) -> tuple[float, ...]:
    """Return the mean loss with the logits divided by each of ``TEMPERATURES``, by one forward pass.

    Parameters
    ----------
    model : TunedModel
        Its logits are divided by its own temperature already.
    samples : Samples
        At least one, with labels in [0, C).
    batch_size : int
        Samples per forward pass.
    largest : float
        Most that a sample's loss counts.

    Returns
    -------
    tuple of float
        In nats, in the order of ``TEMPERATURES``.

    Raises
    ------
    ValueError
        If there are no samples or a label is out of range.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
    check_labels(samples.labels, model.num_classes)
    losses: list[list[float]] = []
    model.eval()
    with torch.no_grad(), reproducible_kernels(model.device):
        for first in range(0, num_examples, batch_size):
            indices = torch.arange(first, min(first + batch_size, num_examples))
            logits = model(samples.inputs(indices).to(model.device)).to("cpu", torch.float64)
            labels = samples.labels[indices]
            losses.append([_loss_sum(logits / t, labels, largest) for t in TEMPERATURES])
    return tuple(math.fsum(column) / num_examples for column in zip(*losses, strict=True))


def _loss_sum(logits: Tensor, labels: Tensor, largest: float) -> float:
    if largest == math.inf:
        return float(F.cross_entropy(logits, labels, reduction="sum"))
    return float(F.cross_entropy(logits, labels, reduction="none").clamp(max=largest).sum())


def best_temperature(losses: Sequence[float]) -> float:
    """Return the temperature of the least loss, between the grid's points by a parabola over log T.

    Closed-form heads are right about the order of classes and say nothing of how sure they are: their logits are
    cosines, or targets of 0 and 1. Tuned as they are, most of the first steps would go into their scale.

    Parameters
    ----------
    losses : sequence of float
        At ``TEMPERATURES``.

    Returns
    -------
    float
        Positive; 1 where the temperature does not matter.

    Raises
    ------
    ValueError
        If there are not as many losses, or one is not finite.
    """
    if len(losses) != len(TEMPERATURES) or not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"there must be {len(TEMPERATURES)} finite losses, got {list(losses)[:3]} ...")
    best = min(range(len(losses)), key=losses.__getitem__)
    if max(losses) - losses[best] <= 1e-12 * max(losses):
        return 1.0
    if best == 0:
        # All samples are right, and the surer the better: beyond this there would be nothing left to see.
        return max(t for t, loss in zip(TEMPERATURES, losses, strict=True) if loss <= losses[0] + SURE_ENOUGH)
    if best == len(losses) - 1:
        return TEMPERATURES[best]
    before, at, after = losses[best - 1 : best + 2]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend > 0.0 else 0.0
    return TEMPERATURES[best] * math.pow(2.0, shift / 2)
