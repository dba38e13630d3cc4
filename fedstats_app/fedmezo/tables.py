"""The tables in which bits are looked up to become a direction's numbers."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The quantiles of the normal distribution, in steps of this: float32 and float64 hold the table exactly, and the last
# bits of a platform's logarithm are rounded away.
_QUANTILE_STEP = 2.0**-12
_QUANTILES_SHA256 = "22eff448358fb3c32080b3b524e32552f28ab50ed1bd11bee9ff39c7fb29c8a3"

Table = Tensor | NDArray[np.float32]


@functools.lru_cache(maxsize=4)
def signs(device: torch.device) -> Table:
    """Return (256, 8): the signs that a byte's bits stand for, the lowest bit first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    table: NDArray[np.float32] = 2 * bits.astype(np.float32) - 1
    return table if device.type == "cpu" else torch.from_numpy(table).to(device)


@functools.lru_cache(maxsize=4)
def quantiles(device: torch.device) -> Table:
    """Return (65536,): the quantiles of the standard normal distribution at (i + 1/2) / 65536.

    Raises
    ------
    RuntimeError
        If this platform computes other ones than all others do.
    """
    probabilities = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    steps = (torch.special.ndtri(probabilities) / _QUANTILE_STEP).round()
    table: NDArray[np.float32] = (steps * _QUANTILE_STEP + 0.0).numpy().astype("<f4")
    if hashlib.sha256(table.tobytes()).hexdigest() != _QUANTILES_SHA256:
        raise RuntimeError(
            "this platform computes other normal quantiles than the rest of the federation would: "
            "use rademacher directions, which need no arithmetic"
        )
    return table if device.type == "cpu" else torch.from_numpy(table).to(device)
