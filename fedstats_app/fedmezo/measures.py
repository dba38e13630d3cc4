"""What is found out before the first round: how to perturb the model, its head's temperature, the loss's curvature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.perturbation import Perturbation, mean_loss
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, check_labels, reproducible_kernels

# So large that a parameter that is missed shows in the logits in every dtype.
_CHECK_EPSILON = 2.0**-4

# Of the curvature, times epsilon: second differences lose twice the digits that first ones lose.
DISTANCE = 8.0

# Where the loss looks straight within it, so many times as far, and again, at most so often.
WIDER, WIDENINGS = 4.0, 8
# Of the loss: second differences that are smaller may be those of rounded parameters. In float32 these reach a tenth of
# it, measured on heads that are 4 to 4,096 times too sure.
_NOISE = {torch.float64: 32 * torch.finfo(torch.float64).eps}
_FLOAT32_NOISE = 32 * torch.finfo(torch.float32).eps

# 2^-8, 2^-7.5, ..., 2^8.
TEMPERATURES: tuple[float, ...] = tuple(math.pow(2.0, step / 2) for step in range(-16, 17))

# Nats: what is given up for a loss that still bends, where the least loss is that of the lowest temperature.
SURE_ENOUGH = 0.01


def check_reading(perturbation: Perturbation, inputs: Tensor) -> str:
    """Compare, on a small batch, "read" with a fully perturbed copy; where they differ, go over to "copy".

    Both run the same kernels on the same numbers, so they must agree to the bit. Where the copy itself does not
    when it is run twice (a GPU may add in any order), up to ten times that difference is allowed.

    Parameters
    ----------
    perturbation : Perturbation
        Whose ``how`` is changed where need be.
    inputs : Tensor
        A batch of at least one.

    Returns
    -------
    str
        What is done and why, in a sentence, if they differ; else "".

    Raises
    ------
    ValueError
        Without inputs.
    """
    if not len(inputs):
        raise ValueError("the check needs at least one input, got none")
    if perturbation.how == "copy":
        return ""
    read = _logits(perturbation, inputs, "read")
    copied, again = _logits(perturbation, inputs, "copy"), _logits(perturbation, inputs, "copy")
    difference, noise = float((read - copied).abs().max()), float((again - copied).abs().max())
    if difference <= 10 * noise:  # also where both are 0, and not where one is no number
        perturbation.how = "read"
        return ""
    return (
        f"this model does not read its parameters as attributes of its modules: perturbed so, its logits differ by "
        f"{difference:.3g} from those of a perturbed copy. All {len(perturbation.names)} tuned parameters are copied, "
        f"which takes {perturbation.copy_bytes / 1e6:.1f} MB instead of {perturbation.module_bytes / 1e6:.1f} MB"
    )


def _logits(perturbation: Perturbation, inputs: Tensor, how: Literal["read", "copy"]) -> Tensor:
    perturbation.how = how
    with perturbation.at(Probe(0, 0, _CHECK_EPSILON), 1):
        return perturbation(inputs).to("cpu", torch.float64)


def curvatures(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return the second derivative of the mean loss along some directions, z' H z, by two forward passes each and one.

    It is [L(theta + h z) - 2 L(theta) + L(theta - h z)] / h^2 with h = 8 epsilon, exact for a quadratic loss. Its mean
    over directions of independent entries of variance 1 is the trace of the Hessian
    (Hutchinson's estimator), which bounds the step that may be taken along such a direction.

    A head that is far too sure has a loss of almost straight lines. Within 8 epsilon its second differences drown in
    rounding, and steps go so far that what can be seen there says nothing. So h grows until it is seen how the loss
    bends, and a step of half of 1 / curvature stays within it.

    Parameters
    ----------
    perturbation, samples, batch_size, probes
        As :func:`~fedstats_app.fedmezo.perturbation.projected_gradients`.

    Returns
    -------
    tuple of float
        One per direction; not finite where a loss is not.

    Raises
    ------
    ValueError
        As :func:`~fedstats_app.fedmezo.perturbation.mean_loss`.
    """
    middle = mean_loss(perturbation, samples, batch_size)
    noise = _NOISE.get(perturbation.dtype, _FLOAT32_NOISE) * middle

    def sides(distance: float) -> tuple[list[float], list[float]]:
        """Return by how much the loss bends, and rises, along each direction."""
        far = [replace(probe, epsilon=distance * probe.epsilon) for probe in probes]
        both = [[mean_loss(perturbation, samples, batch_size, one, sign) for sign in (1, -1)] for one in far]
        return [plus - 2 * middle + minus for plus, minus in both], [(plus - minus) / 2 for plus, minus in both]

    distance = DISTANCE
    bends, _ = sides(distance)
    straight = abs(math.fsum(bends)) <= noise * len(bends)  # not where one is no number
    for widening in range(1, WIDENINGS + 1 if straight else 1):
        wider, rises = sides(DISTANCE * WIDER**widening)
        bend, rise = math.fsum(wider), math.sqrt(math.fsum(one * one for one in rises) * len(rises))
        if not math.isfinite(bend):
            break
        bends, distance = wider, DISTANCE * WIDER**widening
        if bend > noise * len(bends) and 2.0 * bend >= rise:
            break
    return tuple(bend / (distance * probe.epsilon) ** 2 for bend, probe in zip(bends, probes, strict=True))


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
