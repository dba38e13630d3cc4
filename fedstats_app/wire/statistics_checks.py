"""Checks that numbers of the right shape and dtype can be statistics of features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows, ScatterFactor, TriangularFactor
from fedstats_app.statistics.factors import full_rank
from fedstats_app.wire.reading import LARGEST_WHOLE, MAX_COUNT, Malformed

# How far from orthonormal directions made in float32 may be.
MIN_ORTHONORMAL_TOLERANCE = 1e-5
# No network's features are larger in magnitude, and no sum, product or norm of accepted numbers can overflow.
MAX_FEATURE = 1e10
# What other devices, lower precision and the wire's rounding may add to a norm.
NORM_SLACK = 1.02


@dataclass(frozen=True)
class Limits:
    """Bounds that no honest client exceeds: the length of features (infinite if unknown) and a number of samples.

    :func:`fedstats_app.backbones.measurements.feature_norm` measures the length.
    """

    feature_norm: float = math.inf
    max_samples: int = LARGEST_WHOLE

    @property
    def norm(self) -> float:
        """Largest norm of a feature, with what rounding may add."""
        return NORM_SLACK * self.feature_norm


def check_rows(ids: Tensor, counts: Tensor, num_classes: int, means_per_class: int) -> None:
    """Refuse class ids (m,) and counts (m,) that no client can have.

    Ids lie in [0, num_classes), ascend and come no more often than asked for, and counts lie in [1, MAX_COUNT].
    """
    if len(ids) == 0:
        return
    # By numpy: most clients have few classes, and each call of torch costs more than they do.
    own, sizes = ids.numpy(), counts.numpy()
    if not (own.min() >= 0 and own.max() < num_classes):
        raise Malformed(f"class-ids: must lie in [0, {num_classes}), got {own.min()} to {own.max()}")
    if (own[1:] < own[:-1]).any():
        raise Malformed("class-ids: must ascend, got a class out of order")
    if (own[means_per_class:] == own[:-means_per_class]).any():  # they ascend
        most = np.unique(own, return_counts=True)[1].max()
        raise Malformed(f"class-ids: at most {means_per_class} rows per class, got {most}")
    if not (sizes.min() >= 1 and sizes.max() <= MAX_COUNT):
        raise Malformed(f"counts: must lie in [1, {MAX_COUNT}], got {sizes.min()} to {sizes.max()}")


def check_sums(rows: ClassMeanRows, norm: float = math.inf) -> None:
    """Refuse class sums that no features have, none of which is longer than ``norm``.

    A class with samples has no sum of exactly zero (a forgotten sum: no network's features cancel so), and no mean
    larger in magnitude than MAX_FEATURE or longer than any feature.
    """
    if len(rows) == 0:
        return
    means = rows.means
    norms = torch.linalg.vector_norm(means, dim=1)
    shortest, longest = (float(length) for length in norms.aminmax())
    # A sum of exactly zero has a mean of length 0, so without such means the sums need no look.
    if shortest == 0.0 and bool((empty := (rows.class_sums == 0).all(dim=1)).any()):
        raise Malformed(
            f"class-sums: class {int(rows.class_ids[empty][0])} has {int(rows.counts[empty][0])} samples "
            "but a sum of exactly zero"
        )
    if longest > MAX_FEATURE and (largest := float(means.abs().max())) > MAX_FEATURE:
        raise Malformed(f"class-sums: means must lie within {MAX_FEATURE:.0e}, got {largest:.3g}")
    if longest > norm:
        worst = int(norms.argmax())
        raise Malformed(
            f"class-sums: no feature of this backbone is longer than {norm:.4g}, so no mean is either, got "
            f"{float(norms[worst]):.4g} for class {int(rows.class_ids[worst])}"
        )


def most_energy(rows: ClassMeanRows, norm: float = math.inf) -> float:
    """Return the largest trace of a Gram matrix, N norm^2, of features within ``norm`` and MAX_FEATURE."""
    return rows.num_examples * min(norm**2, rows.feature_dim * MAX_FEATURE**2)


def check_within(within: Tensor | TriangularFactor, rows: ClassMeanRows, norm: float = math.inf) -> None:
    """Refuse what cannot be the scatter of features within ``norm`` about the means of these rows, checked already.

    It is zero without samples, and its trace is at most :func:`_most_scatter`. A (d, d) matrix has eigenvalues of at
    least 0, but for what the rounding of a site that computes in float32 can make of them: one Cholesky factorisation
    of the matrix shifted by that tolerance decides, at a tenth of the cost of eigenvalues. The product of a factor
    always has.
    """
    trace = float(within.trace() if isinstance(within, Tensor) else within.trapezoid.square().sum())
    tolerance = 2.0 * torch.finfo(torch.float32).eps * (abs(trace) + float(rows.scaled_sums.square().sum()))
    if len(rows) == 0:
        if trace or (isinstance(within, Tensor) and bool(within.any())):
            raise Malformed("scatter: must be zero without samples, got other values")
        return
    most = _most_scatter(rows, norm)
    if not -tolerance <= trace <= most:
        raise Malformed(f"scatter: must have a trace in [0, {most:.3g}], got {trace:.3g}")
    if isinstance(within, Tensor):
        shifted = within.clone()
        shifted.diagonal().add_(tolerance)
        _, info = torch.linalg.cholesky_ex(shifted)
        if int(info) != 0:
            raise Malformed("scatter: must be positive semi-definite, got negative eigenvalues")


def check_scatter(factor: ScatterFactor, rows: ClassMeanRows, norm: float = math.inf, levels: int = 0) -> None:
    """Refuse what cannot be the largest directions of the scatter of features about the means of these checked rows.

    Values are at least 0 and do not rise, directions are orthonormal, no more than full_rank(rows), and all energy is
    what features within ``norm`` and MAX_FEATURE can give. Each value left out is at most the smallest sent, so the
    energy left out is at most its square for each of them; rounding the directions moves it too. ``levels`` is that of
    the integers that they came as, 0 where they came as they are.
    """
    unsent, left_out = full_rank(rows) - len(factor), factor.left_out
    # Most clients of few samples have no scatter: nothing of theirs but what is left out can be wrong.
    most = _most_scatter(rows, norm) if len(factor) or unsent else 0.0
    if len(factor):
        most = _most_left_out(factor, most, unsent, levels)
    if not 0.0 <= left_out <= most:
        raise Malformed(f"scatter-left-out: must lie in [0, {most:.3g}], got {left_out:.3g}")


def _most_left_out(factor: ScatterFactor, most: float, unsent: int, levels: int) -> float:
    """Return the most energy that further directions can have beside those sent, which have ``most`` together."""
    values, directions = factor.values.to(torch.float64), factor.directions.to(torch.float64)
    numbers = values.tolist()
    # Two rows of n integers are off by about 0.4 of a step in their product.
    step = float(directions.abs().max()) / levels if levels else 0.0
    if numbers[-1] < 0 or numbers != sorted(numbers, reverse=True):
        raise Malformed("scatter-values: must be at least 0 and not rise, got others")
    tolerance = max(4.0 * torch.finfo(factor.directions.dtype).eps, MIN_ORTHONORMAL_TOLERANCE, 3.0 * step)
    excess = float((directions @ directions.T - torch.eye(len(values), dtype=torch.float64)).abs().max())
    if excess > tolerance:
        raise Malformed(f"scatter-directions: must be orthonormal within {tolerance:.2g}, got {excess:.3g}")
    energy = float(values.square().sum())
    if energy > most:
        raise Malformed(f"scatter-values: must have an energy of at most {most:.3g}, got {energy:.3g}")
    return min(unsent * numbers[-1] ** 2, most - energy) + tolerance * energy if unsent else 0.0


def _most_scatter(rows: ClassMeanRows, norm: float) -> float:
    """Return the largest energy about the rows' means: that of all features less that of the means."""
    of_means = float((rows.means.square().sum(dim=1) * rows.counts).sum())
    return most_energy(rows, norm) - (of_means if math.isfinite(norm) else 0.0)
