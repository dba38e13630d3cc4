"""Normal noise as integers, by a table and a stream cipher: no low bits of a float that tell what was added to.

The noise of many parties is the sum of their shares, each a discrete Gaussian on the same grid (Kairouz, Liu and
Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation"). Where each
has a deviation of several steps, their sum is distributed as a discrete Gaussian but for far less than any delta.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_BITS = 64  # of a random word
_GUARD = 256  # of fraction while the table is made
# Beyond so many deviations the weight is below 2^-120.
_REACH = 13


@dataclass(frozen=True, eq=False)
class DiscreteGaussian:
    """The distribution with weights exp(-k^2 / (2 deviation^2)) on integers k.

    Attributes
    ----------
    deviation : float
        In steps, at least 2.
    below : NDArray
        (2 reach + 1,) uint64: how many of 2^64 words give a smaller number than each but the first.
    reach : int
        The largest number.
    """

    deviation: float
    below: NDArray[np.uint64]
    reach: int

    @classmethod
    def of(cls, deviation: float) -> DiscreteGaussian:
        """Make the table, in integers alone: the same on every machine.

        Raises
        ------
        ValueError
            If the deviation is not at least 2 steps.
        """
        if not 2 <= deviation < 1e6:
            raise ValueError(f"noise must have a deviation of 2 to 1e6 steps, got {deviation}")
        with localcontext() as context:
            context.prec = 100
            first = int((-1 / (2 * Decimal(deviation) ** 2)).exp() * (1 << _GUARD))
        # Neighbours' weights have the ratios q, q^3, q^5, ..., q the first.
        reach, square = math.ceil(_REACH * deviation), first * first >> _GUARD
        weights, ratio = [1 << _GUARD], first
        for _ in range(reach):
            weights.append(weights[-1] * ratio >> _GUARD)
            ratio = ratio * square >> _GUARD
        total, summed, below = 2 * sum(weights) - weights[0], 0, []
        for weight in (*weights[:0:-1], *weights[:-1]):
            summed += weight
            below.append((summed << _BITS) // total)
        return cls(deviation, np.array(below, dtype=np.uint64), reach)

    def draw(self, number: int, key: bytes | None = None) -> NDArray[np.int64]:
        """Return (number,) numbers.

        Parameters
        ----------
        number : int
            How many.
        key : bytes, optional
            32 bytes, the same numbers for the same; drawn anew by default. Never used for anything else.
        """
        cipher = Cipher(algorithms.AES(key or os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(cipher.update(bytes(8 * number)), dtype="<u8")
        return np.searchsorted(self.below, words, side="right").astype(np.int64) - self.reach
