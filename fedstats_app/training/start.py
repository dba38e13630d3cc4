"""Starts of training: heads made without statistics, the temperature of a solved head, a probe's learning rate.

The rate follows from the curvature of a probe's loss and the clients' steps in a round. The Hessian of softmax
regression is (diag(p) - p p') times the second moment of the features with a 1 for the bias. Features of pre-trained
networks have a mean far from 0, so that the largest eigenvalue of that moment is about the squared length of a class
mean, plus 1; of diag(p) - p p' it is at most 1/2, and 1/C where nothing is known yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.training.proportion import capped

# Keeps this draw apart from the others that a run's seed decides.
_STREAM = 0x4EAD


def random_head(num_classes: int, feature_dim: int, seed: int, *, bias: bool = True) -> LinearHead:
    """Draw the float32 head that a linear layer of torch starts with: uniform in +-1/sqrt(d), the same for all clients.

    Without ``bias`` it is zero, as in FedCOF's bias-free layers.
    """
    draw = np.random.default_rng([seed, _STREAM])
    bound = 1 / math.sqrt(feature_dim)
    weight = torch.from_numpy(draw.uniform(-bound, bound, (num_classes, feature_dim))).float()
    offsets = torch.from_numpy(draw.uniform(-bound, bound, num_classes)).float()
    report = SolveReport(regulariser=f"random, seed {seed}")
    return LinearHead(weight, offsets if bias else torch.zeros(num_classes), report=report)


def zero_head(num_classes: int, feature_dim: int) -> LinearHead:
    """Return the head whose logits are all zero."""
    return LinearHead(
        torch.zeros(num_classes, feature_dim), torch.zeros(num_classes), report=SolveReport(regulariser="zero")
    )


# 2^-8, 2^-7.5, ..., 2^8.
TEMPERATURES: tuple[float, ...] = tuple(math.pow(2.0, step / 2) for step in range(-16, 17))

# Nats above the least loss that are accepted if the least is that of the lowest temperature.
SURE_ENOUGH = 0.01


def best_temperature(losses: Sequence[float]) -> float:
    """Return the temperature of the least loss, between the grid's points by a parabola over log T.

    Closed-form heads give the order of classes, but no confidence: their logits are cosines, or targets of 0 and 1. The
    first steps would change mostly their scale.

    The losses, all finite, are at ``TEMPERATURES``; if the temperature does not matter it is 1.
    """
    if len(losses) != len(TEMPERATURES) or not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"there must be {len(TEMPERATURES)} finite losses, got {list(losses)[:3]} ...")
    best = min(range(len(losses)), key=losses.__getitem__)
    if max(losses) - losses[best] <= 1e-12 * max(losses):
        return 1.0
    if best == 0:
        # All samples are right, so that the loss falls to 0 with the temperature.
        return max(t for t, loss in zip(TEMPERATURES, losses, strict=True) if loss <= losses[0] + SURE_ENOUGH)
    if best == len(losses) - 1:
        return TEMPERATURES[best]
    before, at, after = losses[best - 1 : best + 2]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend > 0.0 else 0.0
    return TEMPERATURES[best] * math.pow(2.0, shift / 2)


# Of 1 / L, L the curvature at p = (1/2, 1/2): above it, and above twice that, most heads lose.
STABLE = 4.0
# Steps of a client in a row that do not move its model away from the others'.
STEPS_TOGETHER = 8
# Of a probe whatever its features: a step beyond the logits' own scale only hurts.
LARGEST_RATE = 1.0


def probe_step(class_counts: Tensor, class_sums: Tensor) -> float | None:
    """Return 1 / L = 2 / (l + 1) for a solved head, l the squared length of a typical class mean.

    Typical is the median over samples, because a single client may have a class and lie about it. Counts are (C,)
    integers and sums (C, d) float64; None if fewer than two classes have samples.
    """
    present = class_counts > 0
    if int(present.sum()) < 2:
        return None
    counts = class_counts[present].to(torch.float64)
    means = class_sums[present] / counts.unsqueeze(1)
    return 2.0 / (_median(means.square().sum(dim=1), counts) + 1.0)


def probe_rate(
    step: float, *, num_steps: int = 1, made_classes: int = 0, momentum: float = 0.0, temperature: float = 1.0
) -> float:
    """Return the rate of SGD, in (0, 1], at which a probe learns fast and keeps the accuracy of its start.

    For a solved head it is 4 / L, and 8 / S of that if a client makes S > 8 steps in a round: steps of clients with
    different classes diverge. A made head has nothing to lose, and at its start p = 1 / C.

    Parameters
    ----------
    step : float
        1 / L, as :func:`probe_step` gives it, of the features that the head takes.
    num_steps : int
        S, of a typical client in a round.
    made_classes : int
        C, if the head was made rather than solved; else 0.
    momentum : float
        In [0, 1): it multiplies steps by 1 / (1 - momentum) in the long run.
    temperature : float
        Divisor of the logits, and so of slopes, and twice of the curvature.
    """
    times = float(made_classes) if made_classes else STABLE * min(1.0, STEPS_TOGETHER / num_steps)
    rate = times * step * (1.0 - momentum) * temperature**2
    return float(f"{min(rate, LARGEST_RATE):.4g}")


def typical_steps(num_examples: Mapping[int, int], batch_size: int, epochs: int, max_share: float | None = None) -> int:
    """Return the steps of SGD of a typical client in a round: the median over samples, as far as one client's count."""
    sizes = torch.tensor(list(num_examples.values()))
    weights = torch.tensor(list(capped(num_examples, max_share).values()))
    return epochs * math.ceil(_median(sizes.to(torch.float64), weights) / batch_size)


def _median(values: Tensor, counts: Tensor) -> float:
    """Return the median of (C,) values, each as often as (C,) counts say; of two in the middle the smaller."""
    values, order = values.sort()
    reached = counts[order].cumsum(dim=0) >= counts.sum() / 2.0
    return float(values[int(reached.to(torch.int64).argmax())])
