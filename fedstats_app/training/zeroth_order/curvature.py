"""How sharply the loss bends along random directions, from which a learning rate follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedstats_app.training.samples import Samples
from fedstats_app.training.zeroth_order.objective import mean_loss
from fedstats_app.training.zeroth_order.perturbation import Perturbation
from fedstats_app.training.zeroth_order.perturbed import Probe

# Times epsilon: second differences lose twice the digits that first ones lose.
DISTANCE = 8.0


def curvatures(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return the second derivative of the mean loss along some directions, z' H z, by two forward passes each and one.

    It is [L(theta + h z) - 2 L(theta) + L(theta - h z)] / h^2 with h = 8 epsilon, exact for a quadratic loss. Its mean
    over directions of independent entries of variance 1 is the trace of the Hessian
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
    middle = mean_loss(perturbation, samples, batch_size)
    found = []
    for probe in probes:
        far = replace(probe, epsilon=DISTANCE * probe.epsilon)
        sides = [mean_loss(perturbation, samples, batch_size, far, sign) for sign in (1, -1)]
        found.append((sides[0] - 2 * middle + sides[1]) / far.epsilon**2)
    return tuple(found)
