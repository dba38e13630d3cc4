"""How sharply the loss bends along random directions, from which a learning rate follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedstats_app.training.samples import Samples
from fedstats_app.training.zeroth_order.objective import mean_loss
from fedstats_app.training.zeroth_order.perturbation import Perturbation
from fedstats_app.training.zeroth_order.perturbed import Probe

# Times epsilon: second differences lose twice the digits that first ones lose.
INNER, OUTER = 4.0, 8.0


def curvatures(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return the second derivative of the mean loss along some directions, z' H z, by four forward passes each.

    With h = 4 epsilon it is [L(theta + 2 h z) + L(theta - 2 h z) - L(theta + h z) - L(theta - h z)] / (3 h^2), exact
    for a quadratic loss. Its mean over directions of independent entries of variance 1 is the trace of the Hessian
    (Hutchinson's estimator), which bounds the step that may be taken along such a direction.

    Parameters
    ----------
    perturbation, samples, batch_size, probes
        As :func:`~fedstats_app.training.zeroth_order.objective.projected_gradients`.

    Returns
    -------
    tuple of float
        One per direction; not finite where a loss is not.

    Raises
    ------
    ValueError
        As :func:`~fedstats_app.training.zeroth_order.objective.mean_loss`.
    """
    return tuple(_curvature(perturbation, samples, batch_size, probe) for probe in probes)


def _curvature(perturbation: Perturbation, samples: Samples, batch_size: int, probe: Probe) -> float:
    def both_sides(distance: float) -> float:
        at = replace(probe, epsilon=distance * probe.epsilon)
        return sum(mean_loss(perturbation, samples, batch_size, at, sign) for sign in (1, -1))

    step = (OUTER - INNER) * probe.epsilon
    return (both_sides(OUTER) - both_sides(INNER)) / (3 * step**2)
