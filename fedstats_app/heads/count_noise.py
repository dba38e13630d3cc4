"""Noise on the counts of rows: an experiment of FedCOF's paper, which protects nobody.

Goswami et al. 2025, "Covariances for free", eq. 23. The means carry no noise, a class that a client lacks gets none
either, and no differential privacy is proved. Here the server draws it, after it has seen the counts: what is measured
is how much accuracy such noise would cost.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows

CountNoise = Literal["uniform", "gaussian", "laplace"]


def draw_noise(kind: CountNoise, epsilon: float, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the noise of each count.

    Parameters
    ----------
    kind : {"uniform", "gaussian", "laplace"}
        Uniform in +-(1 - epsilon) n; normal of variance 1 / epsilon; or Laplace of scale 1 / epsilon.
    epsilon : float
        In (0, 1): the smaller, the more noise.
    counts : Tensor
        (M,) n.
    generator : torch.Generator
        What draws.

    Returns
    -------
    Tensor
        (M,) float64.

    Raises
    ------
    ValueError
        For another kind, or epsilon out of range.
    """
    if not 0.0 < epsilon < 1.0:
        raise ValueError(f"epsilon must lie in (0, 1), got {epsilon}")
    if kind == "gaussian":
        return torch.randn(len(counts), dtype=torch.float64, generator=generator) / math.sqrt(epsilon)
    draw = 2.0 * torch.rand(len(counts), dtype=torch.float64, generator=generator) - 1.0
    if kind == "uniform":
        return draw * (1.0 - epsilon) * counts.to(torch.float64)
    if kind == "laplace":
        return draw.sign() * torch.log1p(-draw.abs()).neg() / epsilon
    raise ValueError(f"noise must be uniform, gaussian or laplace, got {kind!r}")


def with_noise(rows: ClassMeanRows, noise: Tensor) -> ClassMeanRows:
    """Return the rows with noise (M,) added to their counts, their means as they were; rows left without any are gone.

    Counts are not rounded, so they are float64.
    """
    counts = rows.counts.to(torch.float64) + noise
    stay = counts > 0
    return ClassMeanRows(rows.class_ids[stay], counts[stay], rows.means[stay], rows.num_classes)
