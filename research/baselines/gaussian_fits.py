"""One Gaussian for every class of a client, by its moments: what CCVR asks for."""

from __future__ import annotations

import torch
from torch import Tensor

from research.baselines.mixtures import ClassMixtures


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
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be (n, d) and labels (n,), got {features.shape} and {labels.shape}")
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
