"""Class sums and second moments with noise, in two answers, and the heads that are made of them.

1. The sum of unit features. Divided by a declared number of samples it is a mean, the same for all.
2. Of each sample's deviation from that mean, scaled to length 1: class sums, and the sum of z z^T.

A sample is in each part once, and moves it by at most 1: by a unit vector in the row of its class, and by z z^T, which
is as long as |z|^2 = 1. What the heads do with the noisy parts costs nothing further.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.heads.linear_head import normalize_rows
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper

Noise = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Division:
    """How one promise is divided among the parts, and how the second moments are used.

    Attributes
    ----------
    mean : float
        Share of mu^2 that the mean takes.
    sums : float or None
        Share of the rest that class sums take. None: (1 + r) / 2 with r = C / (C + sqrt(d / 2)), the share at which
        the noise of the class sums is as long as that of the second moments.
    ridge, floor : float
        What is added to every eigenvalue, and the least eigenvalue, in edges of the noise's spectrum.
    """

    mean: float = 0.05
    sums: float | None = None
    ridge: float = 0.5
    floor: float = 0.05

    def parts(self, mu: float, num_classes: int, dim: int) -> tuple[float, float, float]:
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
        return mu * math.sqrt(self.mean), mu * math.sqrt(rest * sums), mu * math.sqrt(rest * (1 - sums))


def unit(features: Tensor) -> Tensor:
    """Scale rows to length 1; a row of zeros stays."""
    return normalize_rows(features)[0]


def deviations(features: Tensor, mean: Tensor) -> Tensor:
    """Return unit deviations of unit features (n, d) from a mean (d,)."""
    return unit(unit(features) - mean)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return (C, d) sums of features (n, d) by their labels (n,) int64."""
    return features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)


def second_moments(features: Tensor) -> Tensor:
    """Return the triangle of the sum of z z^T, off the diagonal times sqrt(2): as long as the whole matrix.

    Returns
    -------
    Tensor
        (d (d + 1) / 2,).
    """
    return pack_upper(features.T @ features) * _root_of_times(features.shape[1], features)


def matrix_of(moments: Tensor, dim: int) -> Tensor:
    """Return the symmetric (d, d) matrix of :func:`second_moments`."""
    return unpack_upper(moments / _root_of_times(dim, moments), dim)


def _root_of_times(dim: int, like: Tensor) -> Tensor:
    """Return 1 for entries on the diagonal, sqrt(2) for others, which are in the matrix twice."""
    return pack_upper(like.new_full((dim, dim), math.sqrt(2.0)).fill_diagonal_(1.0))


def gaussian(generator: torch.Generator) -> Noise:
    """Make a function that adds normal noise: for measurements, since floats tell more than integers.

    Mironov 2012, "On significance of the least significant bits for differential privacy".
    """

    def noisy(values: Tensor, deviation: float) -> Tensor:
        drawn = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        return values + deviation * drawn

    return noisy


@dataclass(frozen=True, eq=False)
class Released:
    """All that is known of the data.

    Attributes
    ----------
    mean : Tensor
        (d,) float64, of unit features.
    sums : Tensor
        (C, d) float64.
    moments : Tensor
        (d, d) float64, symmetric; noise may make eigenvalues negative.
    edge : float
        Largest eigenvalue of the noise in ``moments`` alone: the semicircle's, sqrt(2 d) times its deviation.
    num_samples : int
        As declared.
    division : Division
        By which it was released.
    """

    mean: Tensor
    sums: Tensor
    moments: Tensor
    edge: float
    num_samples: int
    division: Division

    def ncm(self) -> LinearHead:
        """Return FedNCM's head: the class sums, scaled to length 1."""
        return self._head(self.sums, "none")

    def ridge(self) -> LinearHead:
        """Return Fed3R's head: S (G + ridge)^-1 with the spectrum of G cleaned, scaled to length 1.

        Noise lifts an eigenvalue e' above its edge to about sqrt(e'^2 + edge^2); this is undone. Those below say
        nothing: what is left of the trace, which is the number of samples, is spread evenly over them.
        """
        values, vectors = torch.linalg.eigh(self.moments)
        seen = values > self.edge
        cleaned = torch.where(seen, (values.square() - self.edge**2).clamp(min=0).sqrt(), 0.0)
        left = (self.num_samples - float(cleaned.sum())) / max(int((~seen).sum()), 1)
        least, added = max(left, self.division.floor * self.edge), self.division.ridge * self.edge
        weight = ((self.sums @ vectors) / (cleaned.clamp(min=least) + added)) @ vectors.T
        return self._head(weight, f"lambda {added:.4g} (of the noise)")

    def _head(self, weight: Tensor, regulariser: str) -> LinearHead:
        # W (u - m) is W u - W m, and the length of u - m changes no prediction: a linear head on unit features.
        rows = unit(weight)
        return LinearHead(rows, -rows @ self.mean, report=SolveReport(regulariser))


def release(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    num_samples: int,
    mu: float,
    noise: Noise,
    division: Division | None = None,
) -> Released:
    """Release what heads need, mu-GDP for one sample more or less.

    Parameters
    ----------
    features : Tensor
        (n, d) float64.
    labels : Tensor
        (n,) int64.
    num_classes : int
        C; not taken from the labels, which nothing may depend on.
    num_samples : int
        N as declared: neighbours have the same.
    mu : float
        See :func:`research.noise.account.mu_of`.
    noise : callable
        Adds noise of a standard deviation.
    division : Division, optional
        By default as measured.

    Raises
    ------
    ValueError
        If features are not finite, or N is below 1.
    """
    if num_samples < 1 or not bool(features.isfinite().all()):
        raise ValueError(f"features must be finite and samples be declared, got {num_samples}")
    division = division or Division()
    dim = features.shape[1]
    of_mean, of_sums, of_moments = division.parts(mu, num_classes, dim)
    mean = noise(unit(features).sum(dim=0), 1 / of_mean) / num_samples
    turned = deviations(features, mean)
    sums = noise(class_sums(turned, labels, num_classes), 1 / of_sums)
    moments = matrix_of(noise(second_moments(turned), 1 / of_moments), dim)
    return Released(mean, sums, moments, math.sqrt(2 * dim) / of_moments, num_samples, division)


def plain_sums(features: Tensor, labels: Tensor, num_classes: int, *, mu: float, noise: Noise) -> LinearHead:
    """Return the head of class sums of unit features with noise: the least that differential privacy can do."""
    sums = noise(class_sums(unit(features), labels, num_classes), 1 / mu)
    return LinearHead.of_rows(sums, torch.ones(num_classes, dtype=torch.bool))


def signal_to_noise(num_samples: int, num_classes: int, dim: int, mu: float) -> float:
    """Return N mu / (2 C sqrt(d)): the length of a class's sum of deviations beside that of its noise, roughly."""
    return num_samples * mu / (2 * num_classes * math.sqrt(dim))
