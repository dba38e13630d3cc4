"""Evidence of the labels given the features, by which networks are compared without test data."""

from __future__ import annotations

import math
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedstats_app.heads.scatter import mean_product, needed_gram
from fedstats_app.statistics import FeatureStatistics

# Candidate ridges in units of the mean squared distance of a sample from the mean of all.
RIDGES = 10.0 ** (torch.arange(-24, 17, dtype=torch.float64) / 4)
# Eigenvalues, and energies of the class sums along the eigenvectors, by statistics: several heads and the run's own
# evidence ask about the same, and the decomposition takes longer than a solve.
_SPECTRA = WeakKeyDictionary[FeatureStatistics, tuple[Tensor, Tensor]]()


def evidence_by_ridge(stats: FeatureStatistics) -> Callable[[float], float]:
    """Return the function from a ridge lambda > 0 to the evidence of one-hot labels, per sample and class, in nats.

    With y = W f + noise, weights normal about 0 and one ratio lambda of the variances of noise and weights for all
    classes, both variances integrated out or set to their best, it is up to a constant of the labels
    (-N log(rss / N) - log det(I + G / lambda)) / 2N with rss = tr(Y^T Y) - tr(B^T (G + lambda I)^-1 B) (MacKay 1992,
    "Bayesian interpolation"; Bishop 2006, eq. 3.86). Features and labels are centred, G - N mu mu^T and B - n mu^T: the
    common mean would explain most of the labels of few samples.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics of at least one sample: class sums B, counts n and Gram matrix G.
    """
    counts, number = stats.class_counts.to(torch.float64), float(stats.num_examples)
    if stats not in _SPECTRA:
        centred = stats.class_sums - torch.outer(counts, stats.mean)
        values, vectors = torch.linalg.eigh(needed_gram(stats, "evidence") - mean_product(stats))
        _SPECTRA[stats] = values.clamp(min=0.0), (vectors.T @ centred.T).square().sum(dim=1)
    eigenvalues, energies = _SPECTRA[stats]
    total = number - float(counts.square().sum()) / number

    def evidence(ridge: float) -> float:
        residual = max(total - float((energies / (eigenvalues + ridge)).sum()), 1e-12 * number)
        return -(math.log(residual / number) + float(torch.log1p(eigenvalues / ridge).sum()) / number) / 2

    return evidence


def label_evidence(stats: FeatureStatistics) -> float:
    """Return the evidence of one-hot labels per sample and class column, at the best ridge, in nats.

    It compares networks, and transforms of features, on the same samples and classes.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics with a Gram matrix (d, d) float64, the samples' own or a completed one.

    Raises
    ------
    ValueError
        Without a Gram matrix or samples.
    """
    gram, number = needed_gram(stats, "evidence"), stats.num_examples
    if not number:
        raise ValueError("evidence needs samples, got none")
    unit = max(float((gram - mean_product(stats)).trace()) / number, 1e-300)
    return max(map(evidence_by_ridge(stats), (unit * RIDGES).tolist()))
