"""Features on a grid, so that every sum of them is exact: the same bits for any order, split and spread over nodes.

A sum of multiples of 2^-F is exact in float64 while it stays below 2^53 of them, whatever adds it up. No sum of
absolute products of N features of length R is larger than N R^2 (Cauchy and Schwarz).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import accumulation_device

# With 12 bits no prediction of 5,000 was another one than with the features as they are, with 6 at most 4 were.
MOST_BITS, LEAST_BITS = 12, 6
# What float64 holds, less one for what rounding adds to the length of a feature.
_BITS_OF_SUM = 52


def fraction_bits(num_samples: int, norm: float, *, squares: bool) -> int:
    """Return F for which all sums of ``num_samples`` features, multiples of 2^-F, are exact in float64.

    Parameters
    ----------
    num_samples : int
        N, at least 1: as many as there can be.
    norm : float
        R: no feature is longer.
    squares : bool
        Whether products of features are summed too.

    Raises
    ------
    ValueError
        If R is not finite, or F would be less than 6.
    """
    if not math.isfinite(norm):
        raise ValueError("exact-sums: needs features of bounded length, got a backbone that bounds nothing")
    room = _BITS_OF_SUM - math.log2(num_samples)
    bits = math.floor(room / 2 - math.log2(norm) if squares else room - math.log2(norm))
    if bits < LEAST_BITS:
        raise ValueError(
            f"exact-sums: of {num_samples} features up to {norm:.4g} long, sums are exact with {bits} bits of "
            f"fraction, {LEAST_BITS} are needed: a smaller max-client-samples"
        )
    return min(bits, MOST_BITS)


def on_grid(features: Tensor, bits: int) -> Tensor:
    """Return (n, d) float64 features, each number the nearest multiple of 2^-bits."""
    exact = features.to(device=accumulation_device(features.device), dtype=torch.float64)
    return (exact * 2.0**bits).round() * 2.0**-bits


def is_on_grid(values: Tensor, bits: int) -> bool:
    """Return whether all values are multiples of 2^-bits."""
    return torch.equal(values, on_grid(values, bits))
