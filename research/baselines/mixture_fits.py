"""A mixture of Gaussians for every class of a client, by expectation maximisation: what FedPFT asks for."""

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
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be (n, d) and labels (n,), got {features.shape} and {labels.shape}")
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


def _mixture(components: int, covariance: Covariance, seed: int) -> Any:
    return _sklearn("mixture").GaussianMixture(
        components,
        covariance_type=_SKLEARN_KIND[covariance],
        tol=TOLERANCE,
        max_iter=MOST_STEPS,
        random_state=seed,
    )


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("FedPFT needs scikit-learn: pip install 'fedstats-app[baselines]'") from error
