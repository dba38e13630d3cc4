"""Rounding to bfloat16 up or down at random, so that steps smaller than a weight's spacing are not lost."""

from __future__ import annotations

import torch
from torch import Tensor

# The bits of a float32 that a bfloat16 has: all but the lowest 16.
_KEPT = -(2**16)


def round_stochastically(values: Tensor, bits: Tensor) -> Tensor:
    """Round float32 numbers to one of their two neighbours in bfloat16, to the nearer one more often.

    Where the nearest is always taken, a weight of 1 ignores every step below 0.004, however many there are; here the
    expectation over the bits is the number itself.

    Parameters
    ----------
    values : Tensor
        (n,) float32, finite.
    bits : Tensor
        (n,) int32 in [0, 2^16), uniform: a number goes away from zero where its dropped bits plus these overflow.

    Returns
    -------
    Tensor
        (n,) bfloat16; integer arithmetic, so the same on every platform.
    """
    kept = (values.view(torch.int32) + bits).bitwise_and_(_KEPT)
    return kept.view(torch.float32).to(torch.bfloat16)
