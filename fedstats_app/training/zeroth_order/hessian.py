"""Directions scaled by an estimate of the diagonal Hessian, which follows from the log of scalars alone (HiSo).

Li et al., "Converge Faster, Talk Less: Hessian-Informed Federated Zeroth-Order Optimization" (arXiv 2506.02370): the
model is probed, and moved, along u = h^(-1/2) z, and h <- (1 - nu) h + nu (x^2 + floor), elementwise, x being the last
round's step. All nodes know all steps, so no byte more is sent. Here x is the step divided by the root of the sum of
its squared scalars: then h stays about 1 on average, and a learning rate means what it means without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstats_app.training.zeroth_order.directions import Directions

# Under h, whatever the draws: coordinates whose steps were all about 0 are not scaled beyond 1,000.
FLOOR = 1e-6


class DiagonalHessian:
    """The estimate h of every tuned parameter, 1 before the first round.

    Every operation is elementwise, a kernel of its own and correctly rounded: the same bits on every node.

    Parameters
    ----------
    parameters : mapping
        From name to parameter, of any shape.
    smoothing : float
        nu, in (0, 0.5]: what a round weighs.

    Attributes
    ----------
    values : dict
        From name to (n,) float32, on the parameter's device.

    Raises
    ------
    ValueError
        If nu is out of range.
    """

    def __init__(self, parameters: Mapping[str, Tensor], smoothing: float) -> None:
        if not 0.0 < smoothing <= 0.5:
            raise ValueError(f"smoothing must lie in (0, 0.5], got {smoothing}")
        self.smoothing = smoothing
        self.values = {name: torch.ones(one.numel(), device=one.device) for name, one in parameters.items()}

    def learn(self, name: str, positions: slice, step: Tensor) -> None:
        """Take up a round's step over part of a parameter.

        Parameters
        ----------
        name : str
            Of the parameter.
        positions : slice
            Which of its elements.
        step : Tensor
            (b,) float32, sum_p w_p u_p of the round's directions with :func:`unit` weights; it is changed.
        """
        square = step.square_().add_(FLOOR).mul_(self.smoothing)
        self.values[name][positions].mul_(1.0 - self.smoothing).add_(square)


def unit(steps: Sequence[float]) -> tuple[float, ...]:
    """Return steps, not all 0, divided by the root of the sum of their squares, to the same bits everywhere."""
    largest = max(abs(step) for step in steps)
    shares = [step / largest for step in steps]
    length = math.sqrt(math.fsum(share * share for share in shares))
    return tuple(share / length for share in shares)


@dataclass(frozen=True)
class ScaledDirections(Directions):
    """z divided by the root of h, as h is when they are drawn.

    Attributes
    ----------
    hessian : DiagonalHessian
        Of the parameters that are probed.
    """

    hessian: DiagonalHessian = field(kw_only=True, compare=False)

    def blocks(
        self, seed: int, index: int, name: str, size: int, device: torch.device | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Draw one parameter's part of a direction, as :meth:`Directions.blocks`."""
        values = self.hessian.values[name]
        for positions, z in super().blocks(seed, index, name, size, device):
            yield positions, z.div_(values[positions].sqrt())
