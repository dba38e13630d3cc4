"""Integer normal noise, by a table and a stream cipher: the low bits of floating-point noise could reveal the data.

The noise of many parties is the sum of their shares, each a discrete Gaussian on the same grid (Kairouz, Liu and
Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation"). If each
has a deviation of several steps, their sum differs from a discrete Gaussian by far less than any delta. So does a
coarse draw plus a fine one that fills its gaps (Micciancio and Walter 2017, "Gaussian sampling over the integers"):
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
# Beyond this number of deviations the weight is below 2^-120.
_REACH = 13
# A table has deviations up to the first; beyond, one of a fine table fills the gaps between multiples.
_WIDEST, _FINE, _GAP = 2.0**13, 2.0**12, 2**10


@dataclass(frozen=True, eq=False)
class DiscreteGaussian:
    """The distribution with weights exp(-k^2 / (2 deviation^2)) on integers k.

    Attributes
    ----------
    below : NDArray
        (2 reach + 1,) uint64: for each number but the first, how many of the 2^64 words give a smaller one.
    reach : int
        The largest number of the table.
    coarse : DiscreteGaussian or None
        Distribution of the additional multiples of 2^10, for deviations too large for one table.
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
            Count.
        key : bytes, optional
            32 bytes that determine the numbers, and are used for nothing else; random by default.
        """
        return self._drawn(number, Cipher(algorithms.AES(key or os.urandom(32)), modes.CTR(bytes(16))).encryptor())

    def _drawn(self, number: int, cipher: CipherContext) -> NDArray[np.int64]:
        words = np.frombuffer(cipher.update(bytes(8 * number)), dtype="<u8")
        own = np.searchsorted(self.below, words, side="right").astype(np.int64) - self.reach
        return own if self.coarse is None else own + _GAP * self.coarse._drawn(number, cipher)
