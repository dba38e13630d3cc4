"""Normal noise as integers, by a table and a stream cipher: no low bits of a float that tell what was added to.

The noise of many parties is the sum of their shares, each a discrete Gaussian on the same grid (Kairouz, Liu and
Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation"). Where each
has a deviation of several steps, their sum is distributed as a discrete Gaussian but for far less than any delta. So is
a multiple of one and another that fills its gaps (Micciancio and Walter 2017, "Gaussian sampling over the integers"):
with a deviation of 4 gaps the difference is below 2^-400.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

_BITS = 64  # of a random word
_GUARD = 256  # of fraction while the table is made
# Beyond so many deviations the weight is below 2^-120.
_REACH = 13
# A table has deviations up to the first; beyond, one of a fine table fills the gaps between multiples.
_WIDEST, _FINE, _GAP = 2.0**13, 2.0**12, 2**10


@dataclass(frozen=True, eq=False)
class DiscreteGaussian:
    """The distribution with weights exp(-k^2 / (2 deviation^2)) on integers k.

    Attributes
    ----------
    below : NDArray
        (2 reach + 1,) uint64: how many of 2^64 words give a smaller number than each but the first.
    reach : int
        The largest number of the table.
    coarse : DiscreteGaussian or None
        Of what is drawn in multiples of 2^10 besides, for deviations beyond a table's.
    """

    below: NDArray[np.uint64]
    reach: int
    coarse: DiscreteGaussian | None = None

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, deviation: float) -> DiscreteGaussian:
        """Make the tables, each in integers alone: the same on every machine.

        Parameters
        ----------
        deviation : float
            In steps.

        Raises
        ------
        ValueError
            If it is not 2 to 1e12 steps.
        """
        if not 2 <= deviation <= 1e12:
            raise ValueError(f"noise must have a deviation of 2 to 1e12 steps, got {deviation}")
        coarse = None
        if deviation > _WIDEST:
            deviation, coarse = _FINE, cls.of(math.sqrt(deviation**2 - _FINE**2) / _GAP)
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
        return cls(np.array(below, dtype=np.uint64), reach, coarse)

    def draw(self, number: int, key: bytes | None = None) -> NDArray[np.int64]:
        """Return (number,) numbers.

        Parameters
        ----------
        number : int
            How many.
        key : bytes, optional
            32 bytes, the same numbers for the same; drawn anew by default. Never used for anything else.
        """
        return self._drawn(number, Cipher(algorithms.AES(key or os.urandom(32)), modes.CTR(bytes(16))).encryptor())

    def _drawn(self, number: int, cipher: CipherContext) -> NDArray[np.int64]:
        words = np.frombuffer(cipher.update(bytes(8 * number)), dtype="<u8")
        own = np.searchsorted(self.below, words, side="right").astype(np.int64) - self.reach
        return own if self.coarse is None else own + _GAP * self.coarse._drawn(number, cipher)
