"""The learning rate of a linear probe, from the class means alone.

Features of pre-trained networks have a mean far from 0. Along it, and along the bias, softmax regression bends most and
a client with few classes pulls the head of all others; what tells classes apart is the rest. So the rate is in units of
one over the squared length of a class mean, with 1 for the bias, and grows with the share of that which lies between
classes, and with their number, since probabilities, and the curvature with them, are smaller. How much was fitted.
"""

from __future__ import annotations

import torch
from torch import Tensor

FACTOR, LEAST_SHARE = 20.0, 0.05
# A head that was made knows nothing and has all to learn; a solved one has much to lose.
MADE_FACTOR = 2.0
# What a node lets a server ask for unless its owner says otherwise (max-learning-rate).
LARGEST_RATE = 1.0


def probe_step(class_counts: Tensor, class_sums: Tensor) -> float | None:
    """Return the rate for a solved head: max(20 C s^2, 0.05) / (l + 1), where s = b / (l + 1).

    Of a typical class mean, l is the squared length and b the squared distance from the mean of all; C is the number of
    classes with samples. Typical is the median over samples of what their class has, because one client alone may have
    a class, and say of it what it likes.

    Parameters
    ----------
    class_counts, class_sums : Tensor
        (C,) integers and (C, d) float64.

    Returns
    -------
    float or None
        Positive; None where there are no two classes with samples.
    """
    present = class_counts > 0
    if int(present.sum()) < 2:
        return None
    counts = class_counts[present].to(torch.float64)
    means = class_sums[present] / counts.unsqueeze(1)
    between = _median((means - class_sums.sum(dim=0) / counts.sum()).square().sum(dim=1), counts)
    length = _median(means.square().sum(dim=1), counts) + 1.0
    return max(FACTOR * len(counts) * (between / length) ** 2, LEAST_SHARE) / length


def probe_rate(step: float, *, made: bool = False, momentum: float = 0.0, temperature: float = 1.0) -> float:
    """Return the rate of SGD at which a linear probe learns fast and loses little of what its start knows.

    Parameters
    ----------
    step : float
        As :func:`probe_step` gives it, of the features that the head takes.
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
    rate = (MADE_FACTOR if made else 1.0) * step * (1.0 - momentum) * temperature**2
    return float(f"{min(rate, LARGEST_RATE):.4g}")


def _median(values: Tensor, counts: Tensor) -> float:
    """Return the median of (C,) values, each as often as (C,) counts say; of two in the middle the smaller."""
    values, order = values.sort()
    reached = counts[order].cumsum(dim=0) >= counts.sum() / 2.0
    return float(values[int(reached.to(torch.int64).argmax())])
