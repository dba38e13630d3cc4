"""Integer encodings for differentially private sums, with an exact bound on each sample's contribution.

A sample's vector of length 1 is shrunk a little, so that rounded to the grid it is not longer either. Sums of such
vectors, and of their products, are whole numbers: nothing is rounded afterwards, and no low bits tell what was added.

1. ``mean``: the sum of unit features.
2. ``moments``: of each sample's deviation z from a mean that all know by then, scaled to length 1, the sums by class,
   and the triangle of the sum of z z^T, which is as long as |z|^2 = 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstats_app.secure.discrete_gaussian import DiscreteGaussian
from fedstats_app.secure.masks import derived
from fedstats_app.statistics.accumulation import mirror_upper, normalize_rows
from fedstats_app.statistics.secure_words import WORD_BYTES, Shapes, Words, as_words, numbers_of

NoisyKind = Literal["mean", "moments"]
# Steps of a length of 1: shrinking by half a step for every feature costs 0.9 % at 1,280 features.
_STEPS = 2.0**11
# For the rounding of float64 when lengths are computed.
_SLACK = 2.0**-30
# Smaller numbers are 0: none of them is a feature's, and lengths of subnormal ones are wrong.
_TINY = 2.0**-500
# Random words beside those that have no mask: without them a digest of what a site sent tells what it sent.
_SALT = 4


@dataclass(frozen=True)
class Division:
    """Division of one privacy promise among the parts.

    Attributes
    ----------
    mean : float
        Share of mu^2 that the mean takes.
    sums : float or None
        Share of the rest that class sums take where second moments are released too. None: (1 + r) / 2 with r = C / (C
        + sqrt(d / 2)), the share at which the noise of the class sums is as long as that of the second moments.
    """

    mean: float = 0.05
    sums: float | None = None

    def parts(self, mu: float, num_classes: int, dim: int, *, moments: bool = True) -> tuple[float, float, float]:
        """Return the mu of the mean, the class sums and the second moments: exactly ``mu`` together.

        Raises
        ------
        ValueError
            If a share is not between 0 and 1.
        """
        alike = num_classes / (num_classes + math.sqrt(dim / 2))
        sums = (1 + alike) / 2 if self.sums is None else self.sums
        if not (0 < self.mean < 1 and 0 < sums < 1):
            raise ValueError(f"shares must be between 0 and 1, got {self.mean} and {sums}")
        rest = 1 - self.mean
        sums = sums if moments else 1.0
        return mu * math.sqrt(self.mean), mu * math.sqrt(rest * sums), mu * math.sqrt(rest * (1 - sums))


@dataclass(frozen=True)
class NoisyLayout:
    """In which words sums with noise travel.

    Attributes
    ----------
    num_classes, feature_dim : int
        C and d.
    moments : bool
        Whether second moments are released.
    mu : float
        Of all parts together.
    salted : bool
        Whether words travel without a mask, and random ones behind them.
    """

    num_classes: int
    feature_dim: int
    moments: bool
    mu: float
    salted: bool = False

    def charge(self, kind: NoisyKind) -> float:
        """Return the mu of a sum."""
        mean, *others = self.parts
        return mean if kind == "mean" else math.hypot(*others)

    @property
    def parts(self) -> tuple[float, float, float]:
        """The mu of the mean, the class sums and the second moments."""
        return Division().parts(self.mu, self.num_classes, self.feature_dim, moments=self.moments)

    def shapes(self, kind: NoisyKind) -> Shapes:
        """List number and bytes of the words of each array of a sum."""
        return [(number, WORD_BYTES) for number in (*self._sizes(kind), *([_SALT] if self.salted else []))]

    def _sizes(self, kind: NoisyKind) -> list[int]:
        dim = self.feature_dim
        if kind == "mean":
            return [dim]
        return [self.num_classes * dim, *([dim, dim * (dim - 1) // 2] if self.moments else [])]

    def sums(self, kind: NoisyKind, blocks: Iterable[tuple[Tensor, Tensor]], mean: Tensor | None) -> list[Tensor]:
        """Sum samples in whole steps.

        Parameters
        ----------
        kind : {"mean", "moments"}
            Which sum.
        blocks : iterable
            Of (b, d) features and (b,) int64 labels. A feature that is not finite counts as one of zeros.
        mean : Tensor or None
            (d,) float64, for the second sum.

        Returns
        -------
        list of Tensor
            (n,) float64 whole numbers, as :meth:`shapes` lists them: the mean's; or class sums row by row, diagonal,
            and the rest of the triangle.
        """
        dim = self.feature_dim
        total = torch.zeros(dim, dtype=torch.float64)
        of_class = torch.zeros(self.num_classes, dim, dtype=torch.float64)
        products = torch.zeros(dim, dim, dtype=torch.float64)
        for features, labels in blocks:
            exact = features.to("cpu", torch.float64)
            exact = torch.where(exact.isfinite().all(dim=1, keepdim=True), exact, 0.0)
            if mean is None:
                total += self._steps(unit(exact)).sum(dim=0)
                continue
            steps = self._steps(deviations(exact, mean))
            of_class.index_add_(0, labels, steps)
            if self.moments:
                products += steps.T @ steps
        if kind == "mean":
            return [total]
        row, column = torch.triu_indices(dim, dim, offset=1)
        triangle = [products.diagonal(), products[row, column]] if self.moments else []
        return [of_class.flatten(), *triangle]

    def noise(self, kind: NoisyKind, honest: int) -> list[float]:
        """Return the deviation, in steps, of the noise that each honest party adds to each array of a sum."""
        mean, sums, moments = self.parts
        if kind == "mean":
            wanted = [_STEPS / mean]
        else:
            # An entry off the diagonal is in the matrix twice: it takes a root of 2 less for the same length.
            square = [_STEPS**2 / moments, _STEPS**2 / moments / math.sqrt(2.0)] if self.moments else []
            wanted = [_STEPS / sums, *square]
        return [deviation / math.sqrt(honest) for deviation in wanted]

    def exact(self, sums: list[Tensor]) -> Words:
        """Write whole numbers as words, without noise."""
        salt = [np.frombuffer(bytearray(os.urandom(WORD_BYTES * _SALT)), np.uint64)] if self.salted else []
        return [*(as_words(total) for total in sums), *salt]

    def noisy(self, kind: NoisyKind, sums: list[Tensor], honest: int, key: bytes | None) -> Words:
        """Add one party's share of noise to whole numbers, the same for the same key; drawn anew for None."""
        deviations_, sizes = self.noise(kind, honest), self._sizes(kind)
        keys = [None if key is None else _numbered(key, place) for place in range(len(sizes))]
        drawn = [
            DiscreteGaussian.of(total).draw(number, own)
            for total, number, own in zip(deviations_, sizes, keys, strict=True)
        ]
        # Whole numbers below 2^53 each, added as integers.
        return self.exact(
            [total.to(torch.int64) + torch.from_numpy(own) for total, own in zip(sums, drawn, strict=True)]
        )

    def read_mean(self, words: Words, num_samples: int) -> Tensor:
        """Return the (d,) float64 mean of unit features."""
        return numbers_of(words[0]) / (self._scale * num_samples)

    def read_moments(self, words: Words) -> tuple[Tensor, Tensor | None]:
        """Return (C, d) class sums and the (d, d) matrix of second moments, both float64; None where there is none."""
        sums = numbers_of(words[0]).reshape(self.num_classes, self.feature_dim) / self._scale
        if not self.moments:
            return sums, None
        matrix = torch.zeros(self.feature_dim, self.feature_dim, dtype=torch.float64)
        row, column = torch.triu_indices(self.feature_dim, self.feature_dim, offset=1)
        matrix[row, column] = numbers_of(words[2])
        matrix.diagonal().copy_(numbers_of(words[1]))
        return sums, mirror_upper(matrix) / self._scale**2

    def edge(self, survivors: int, honest: int) -> float:
        """Return the largest eigenvalue of the noise in the second moments alone: a semicircle's, sqrt(2 d) deviations.

        Parameters
        ----------
        survivors : int
            Parties whose noise is in the sum.
        honest : int
            As many as must be.
        """
        spread = self.noise("moments", honest)[1] * math.sqrt(survivors)
        return math.sqrt(2 * self.feature_dim) * spread / self._scale**2

    @property
    def _scale(self) -> float:
        return _STEPS * (1 - math.sqrt(self.feature_dim) / (2 * _STEPS) - _SLACK)

    def _steps(self, vectors: Tensor) -> Tensor:
        """Round (n, d) float64 unit vectors to vectors of whole numbers no longer than all steps, whatever they are."""
        steps = (vectors * self._scale).round()
        length = torch.linalg.vector_norm(steps, dim=1, keepdim=True)
        return torch.where(length > _STEPS, (steps * (_STEPS * (1 - _SLACK) / length)).trunc(), steps)


def unit(features: Tensor) -> Tensor:
    """Scale rows to length 1; a row of zeros stays, and so does one that is too short to have a direction.

    Twice: of subnormal numbers the first length is wrong by far, of what comes out the second is not.
    """
    scaled = normalize_rows(torch.where(features.abs() < _TINY, 0.0, features))[0]
    return normalize_rows(scaled)[0]


def deviations(features: Tensor, mean: Tensor) -> Tensor:
    """Return unit deviations of unit features (n, d) from a mean (d,)."""
    return unit(unit(features) - mean)


def _numbered(key: bytes, place: int) -> bytes:
    """Derive the key of one array's noise."""
    return derived(key, b"", f"noise|{place}")
