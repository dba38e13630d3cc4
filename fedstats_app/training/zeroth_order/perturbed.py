"""A parameter as the model sees it at theta + scale * z, computed in blocks and into a new tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedstats_app.training.zeroth_order.directions import Directions, rounding_bits
from fedstats_app.training.zeroth_order.rounding import round_stochastically

DTYPES = (torch.float64, torch.float32, torch.bfloat16)

# Bytes from which numpy does so. Getting the memory of a large embedding takes four times as long in pages of 4 KB,
# and longer than all the arithmetic on it.
_HUGE_PAGES_FROM = 2**22


@dataclass(frozen=True)
class Probe:
    """One direction of one round, and how far the model goes along it.

    Attributes
    ----------
    seed : int
        Of the round.
    index : int
        Number of the direction in the round.
    epsilon : float
        Distance, positive: the model is evaluated at theta + epsilon z and at theta - epsilon z.
    directions : Directions
        What z is drawn from.
    """

    seed: int
    index: int
    epsilon: float
    directions: Directions = field(default_factory=Directions)

    def perturbed(self, parameter: Tensor, name: str, sign: int) -> Tensor:
        """Return theta + sign * epsilon * z; theta stays as it is.

        Parameters
        ----------
        parameter : Tensor
            Any shape, contiguous, float64, float32 or bfloat16.
        name : str
            Of the parameter in the model.
        sign : {-1, 1}
            Which side.

        Returns
        -------
        Tensor
            A new tensor of the same shape, dtype and device. Below float32 it is rounded up or down at random, by the
            same bits on both sides and on every node: rounded to the nearest, most large weights would not be
            perturbed at all.

        Raises
        ------
        ValueError
            If the dtype is another one or the tensor is not contiguous.
        """
        theta = flat(parameter)
        result = _new_like(theta)
        if theta.dtype == torch.bfloat16:
            dither = rounding_bits(self.seed, self.index, name, len(theta), theta.device)
            for (positions, z), (_, bits) in zip(self._draws(theta, name), dither, strict=True):
                side = theta[positions].float().add_(z.mul_(self.epsilon), alpha=sign)
                result[positions] = round_stochastically(side, bits)
            return result.view(parameter.shape)
        for positions, z in self._draws(theta, name):
            # The product with a sign is exact: fused or not, the sum is rounded once.
            torch.add(theta[positions], z.to(theta.dtype).mul_(self.epsilon), alpha=sign, out=result[positions])
        return result.view(parameter.shape)

    def blocks(self, parameter: Tensor, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield the direction z in which a parameter is moved: the same in every dtype.

        In bfloat16 the model saw other sides than theta +- epsilon z. But they were that in expectation: so the
        difference quotient times z estimates the slope without a bias, where times (theta+ - theta-) / (2 epsilon) of
        the rounded sides it is too large by that number's second moment, 4 for weights from 1 to 2 and an epsilon of
        0.001.

        Yields
        ------
        positions : slice
            Of the block among the parameter's elements.
        values : Tensor
            (b,), float32, or float64 for a float64 parameter.
        """
        theta = flat(parameter)
        dtype = torch.promote_types(theta.dtype, torch.float32)
        for positions, z in self._draws(theta, name):
            yield positions, z.to(dtype)

    def _draws(self, theta: Tensor, name: str) -> Iterator[tuple[slice, Tensor]]:
        return self.directions.blocks(self.seed, self.index, name, len(theta), theta.device)


def _new_like(theta: Tensor) -> Tensor:
    """Return memory for a result; that of large ones comes from numpy, which asks Linux for huge pages."""
    size = theta.numel() * theta.element_size()
    if theta.device.type != "cpu" or size < _HUGE_PAGES_FROM:
        return torch.empty_like(theta)
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(theta.dtype)


def flat(parameter: Tensor) -> Tensor:
    """Return a parameter's elements in one row, sharing its memory.

    Raises
    ------
    ValueError
        If it has a dtype that cannot be tuned, or is laid out in another order than a contiguous tensor.
    """
    if parameter.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"a tuned parameter must be one of {allowed}, got {parameter.dtype}")
    if not parameter.is_contiguous():
        raise ValueError(f"a tuned parameter must be contiguous, got strides {parameter.stride()}")
    return parameter.detach().view(-1)
