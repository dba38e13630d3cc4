"""What is found out before the first round: how to perturb the model, and the loss's curvature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.perturbation import Perturbation, mean_loss
from fedstats_app.training.samples import Samples

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
