"""The learning rate of a linear probe, from the curvature of its loss and the clients' steps in a round.

The Hessian of softmax regression is (diag(p) - p p') times the second moment of the features with a 1 for the bias.
Features of pre-trained networks have a mean far from 0, so that the largest eigenvalue of that moment is about the
squared length of a class mean, plus 1; of diag(p) - p p' it is at most 1/2, and 1/C where nothing is known yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# Of 1 / L, L the curvature at p = (1/2, 1/2): above it, and above twice that, most heads lose.
STABLE = 4.0
# So many steps of a client in a row, at this rate, do not yet carry its model away from the others'.
STEPS_TOGETHER = 8
# What a node lets a server ask for unless its owner says otherwise (max-learning-rate).
LARGEST_RATE = 1.0


def probe_step(class_counts: Tensor, class_sums: Tensor) -> float | None:
    """Return 1 / L = 2 / (l + 1) for a solved head, l the squared length of a typical class mean.

    Typical is the median over samples of what their class has, because one client alone may have a class, and say of
    it what it likes.

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
    return 2.0 / (_median(means.square().sum(dim=1), counts) + 1.0)


def probe_rate(
    step: float,
    *,
    num_steps: int = 1,
    made_classes: int = 0,
    momentum: float = 0.0,
    temperature: float = 1.0,
) -> float:
    """Return the rate of SGD at which a linear probe learns fast and loses little of what its start knows.

    For a solved head it is 4 / L, and where a client makes S > 8 steps in a round 8 / S of that: steps of clients with
    different classes go different ways. A made head has nothing to lose, and at its start p = 1 / C.

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
        By which logits are divided, and so slopes, and the curvature twice.

    Returns
    -------
    float
        In (0, 1].
    """
    times = float(made_classes) if made_classes else STABLE * min(1.0, STEPS_TOGETHER / num_steps)
    rate = times * step * (1.0 - momentum) * temperature**2
    return float(f"{min(rate, LARGEST_RATE):.4g}")


def typical_steps(client_sizes: Iterable[int], batch_size: int, epochs: int) -> int:
    """Return how many steps a typical client makes in a round: the median over samples, as of class means.

    Parameters
    ----------
    client_sizes : iterable of int
        Samples of each client, at least one above 0.
    batch_size, epochs : int
        Of its SGD.
    """
    sizes = torch.tensor(list(client_sizes))
    return epochs * math.ceil(_median(sizes.to(torch.float64), sizes) / batch_size)


def _median(values: Tensor, counts: Tensor) -> float:
    """Return the median of (C,) values, each as often as (C,) counts say; of two in the middle the smaller."""
    values, order = values.sort()
    reached = counts[order].cumsum(dim=0) >= counts.sum() / 2.0
    return float(values[int(reached.to(torch.int64).argmax())])
