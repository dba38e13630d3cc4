"""The learning rate of a linear probe, from the class means and the number of classes alone.

Features of pre-trained networks have a mean far from 0. Along it, and along the bias, softmax regression bends most and
there a client with few classes pulls the head of all others; what tells classes apart is the rest. So the rate is the
share of the energy of the class means, and the bias, that lies between them, over that energy: a step in proportion to
what can be learnt by it. It grows with the number of classes, since probabilities, and the curvature with them, are
smaller. Factor and power were fitted (docs/results.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

# From a solved head, which has little left to learn and much to lose, and from one that was made and knows nothing.
SOLVED_FACTOR, MADE_FACTOR = 9.0, 18.0
CLASSES_POWER = 0.75
# What a node lets a server ask for unless its owner says otherwise (max-learning-rate).
LARGEST_RATE = 1.0


def probe_step(class_counts: Tensor, class_sums: Tensor) -> float | None:
    """Return the squared distance of a typical class mean from the mean of all, over (its squared length + 1) squared.

    Typical is the median over samples of what their class has, because one client alone may have a class, and say of it
    what it likes.

    Parameters
    ----------
    class_counts, class_sums : Tensor
        (C,) integers and (C, d) float64.

    Returns
    -------
    float or None
        Positive; None where nothing tells classes apart.
    """
    present = class_counts > 0
    if not bool(present.any()):
        return None
    counts = class_counts[present].to(torch.float64)
    means = class_sums[present] / counts.unsqueeze(1)
    between = _median((means - class_sums.sum(dim=0) / counts.sum()).square().sum(dim=1), counts)
    return between / (_median(means.square().sum(dim=1), counts) + 1.0) ** 2 or None


def probe_rate(
    step: float, num_classes: int, *, made: bool = False, momentum: float = 0.0, temperature: float = 1.0
) -> float:
    """Return the rate of SGD at which a linear probe learns fast and does not lose what its start knows.

    Parameters
    ----------
    step : float
        As :func:`probe_step` gives it, of the features that the head takes.
    num_classes : int
        C.
    made : bool
        Whether the head was made rather than solved.
    momentum : float
        In [0, 1): it multiplies steps by 1 / (1 - momentum) in the long run.
    temperature : float
        By which logits are divided, and so slopes, and the curvature twice.

    Returns
    -------
    float
        In (0, 1].
    """
    factor = MADE_FACTOR if made else SOLVED_FACTOR
    rate = factor * num_classes**CLASSES_POWER * step * (1.0 - momentum) * temperature**2
    return float(f"{min(rate, LARGEST_RATE):.4g}")


def _median(values: Tensor, counts: Tensor) -> float:
    """Return the median of (C,) values, each as often as (C,) counts say; of two in the middle the smaller."""
    values, order = values.sort()
    reached = counts[order].cumsum(dim=0) >= counts.sum() / 2.0
    return float(values[int(reached.to(torch.int64).argmax())])
