"""Gaussians for every class of a client: one by its moments (CCVR), or a fitted mixture (FedPFT)."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from research.baselines.mixtures import ClassMixtures, Covariance

# Looser than in FedCGS's runs of FedPFT (1e-12 and 10,000 steps), for time: scikit-learn's own.
TOLERANCE = 1e-3
MOST_STEPS = 100
_SKLEARN_KIND: dict[Covariance, str] = {"full": "full", "diagonal": "diag", "spherical": "spherical"}


def class_gaussians(features: Tensor, labels: Tensor) -> ClassMixtures:
    """Return mean and full sample covariance (divisor n - 1) of every class; 0 where a class has one sample.

    Parameters
    ----------
    features : Tensor
        (n, d), any floating dtype; computed in float64.
    labels : Tensor
        (n,) int64 class ids.

    Raises
    ------
    ValueError
        If the shapes disagree.

    Notes
    -----
    Luo et al., NeurIPS 2021, "No fear of heterogeneity: classifier calibration for federated learning with non-IID
    data", which asks clients for exactly this.
    """
    _check_shapes(features, labels)
    ids, counts = torch.unique(labels, return_counts=True)
    dim = features.shape[1]
    means = torch.zeros(len(ids), 1, dim, dtype=torch.float64)
    covariances = torch.zeros(len(ids), 1, dim, dim, dtype=torch.float64)
    for row, class_id in enumerate(ids):
        own = features[labels == class_id].to(torch.float64)
        means[row, 0] = own.mean(dim=0)
        if len(own) > 1:
            centred = own - means[row, 0]
            covariances[row, 0] = centred.T @ centred / (len(own) - 1)
    return ClassMixtures(ids, counts, torch.ones(len(ids), 1, dtype=torch.float64), means, covariances)


def fitted_mixtures(
    features: Tensor, labels: Tensor, *, components: int, covariance: Covariance, seed: int
) -> ClassMixtures:
    """Return a mixture of J Gaussians for every class with more than J samples, or with one sample at least if J = 1.

    Classes with fewer are left out, as in FedCGS's runs of FedPFT.

    Parameters
    ----------
    features : Tensor
        (n, d).
    labels : Tensor
        (n,) int64 class ids.
    components : int
        J, at least 1.
    covariance : {"full", "diagonal", "spherical"}
        Of the Gaussians.
    seed : int
        In [0, 2^32): of the starts of expectation maximisation.

    Raises
    ------
    ModuleNotFoundError
        If scikit-learn is not installed.
    ValueError
        If the shapes disagree or components is below 1.

    Notes
    -----
    Beitollahi et al. 2024, "Parametric feature transfer: one-shot federated learning with foundation models".
    """
    _check_shapes(features, labels)
    if components < 1:
        raise ValueError(f"components must be at least 1, got {components}")
    ids, counts = torch.unique(labels, return_counts=True)
    fitted = counts > components if components > 1 else counts >= 1
    ids, counts = ids[fitted], counts[fitted]
    dim = features.shape[1]
    in_covariance = {"full": (dim, dim), "diagonal": (dim,), "spherical": ()}[covariance]
    weights = torch.ones(len(ids), components, dtype=torch.float64)
    means = torch.zeros(len(ids), components, dim, dtype=torch.float64)
    covariances = torch.zeros(len(ids), components, *in_covariance, dtype=torch.float64)
    for row, class_id in enumerate(ids):
        own = features[labels == class_id].to(torch.float64)
        if len(own) == 1:
            means[row, 0] = own[0]  # which no covariance can be fitted to
            continue
        mixture = _mixture(components, covariance, seed)
        with warnings.catch_warnings():
            # Fewer distinct samples than components, or steps at an end: the fit is what it is.
            warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
            mixture.fit(own.numpy())
        weights[row] = torch.from_numpy(mixture.weights_)
        means[row] = torch.from_numpy(mixture.means_)
        covariances[row] = torch.from_numpy(mixture.covariances_)
    return ClassMixtures(ids, counts, weights, means, covariances)


def _check_shapes(features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be (n, d) and labels (n,), got {features.shape} and {labels.shape}")


def _mixture(components: int, covariance: Covariance, seed: int) -> Any:
    return _sklearn("mixture").GaussianMixture(
        components, covariance_type=_SKLEARN_KIND[covariance], tol=TOLERANCE, max_iter=MOST_STEPS, random_state=seed
    )


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("FedPFT needs scikit-learn: pip install 'fedstats-app[sklearn]'") from error
