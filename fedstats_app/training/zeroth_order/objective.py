"""What is minimised: the mean loss of all local samples, measured by forward passes alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from fedstats_app.training.local import Diverged, check_labels, reproducible_kernels
from fedstats_app.training.samples import Samples
from fedstats_app.training.zeroth_order.perturbation import Perturbation
from fedstats_app.training.zeroth_order.perturbed import Probe


def mean_loss(
    perturbation: Perturbation, samples: Samples, batch_size: int, probe: Probe | None = None, sign: int = 1
) -> float:
    """Return the mean cross-entropy of all samples at theta + sign * epsilon * z, or at theta.

    Parameters
    ----------
    perturbation : Perturbation
        Of a model from a batch of inputs to (b, C) logits.
    samples : Samples
        At least one, with labels in [0, C). All of them are one batch: only so does every sample of a federation have
        the same weight, wherever it is.
    batch_size : int
        Samples per forward pass, which decides memory and speed and changes the last bits only.
    probe : Probe, optional
        Direction and distance; none for theta itself.
    sign : {-1, 1}
        Which side.

    Returns
    -------
    float
        In nats. The samples' losses are computed in float64 from logits of the model's dtype and added exactly.

    Raises
    ------
    ValueError
        If there are no samples, a label is out of range, or the batch size is below 1.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    where = perturbation.at(probe, sign) if probe is not None else perturbation.at_theta()
    with reproducible_kernels(perturbation.device), where:
        return math.fsum(_losses(perturbation, samples, batch_size)) / num_examples


def projected_gradients(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return (L(theta + epsilon z) - L(theta - epsilon z)) / (2 epsilon) for some directions, theta being the same.

    Two forward passes over all samples per direction; parameters and other errors as :func:`mean_loss`.

    Raises
    ------
    Diverged
        If a loss is not finite.
    """
    return tuple(_projected_gradient(perturbation, samples, batch_size, probe) for probe in probes)


def _projected_gradient(perturbation: Perturbation, samples: Samples, batch_size: int, probe: Probe) -> float:
    plus, minus = (_finite_loss(perturbation, samples, batch_size, probe, sign) for sign in (1, -1))
    return (plus - minus) / (2 * probe.epsilon)


def _finite_loss(perturbation: Perturbation, samples: Samples, batch_size: int, probe: Probe, sign: int) -> float:
    loss = mean_loss(perturbation, samples, batch_size, probe, sign)
    if not math.isfinite(loss):
        side = f"theta {'+' if sign > 0 else '-'} {probe.epsilon} z"
        raise Diverged(f"direction {probe.index}, seed {probe.seed}: the loss at {side} is {loss}")
    return loss


def _losses(perturbation: Perturbation, samples: Samples, batch_size: int) -> Iterator[float]:
    """Yield the samples' losses in their order."""
    num_examples = len(samples.labels)
    for first in range(0, num_examples, batch_size):
        indices = torch.arange(first, min(first + batch_size, num_examples))
        labels = samples.labels[indices]
        logits = perturbation(samples.inputs(indices)).to("cpu", torch.float64)
        check_labels(labels, logits.shape[1])
        yield from F.cross_entropy(logits, labels, reduction="none").tolist()
