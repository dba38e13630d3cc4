"""CCVR: one Gaussian per class, pooled exactly from the clients', from which the server draws features.

Luo et al., NeurIPS 2021, "No fear of heterogeneity: classifier calibration for federated learning with non-IID data".
FedCOF's paper takes it as a baseline on frozen features. The pooled covariance is its equation 24, the oracle's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from research.baselines.drawing import drawn_samples
from research.baselines.mixtures import ClassMixtures


def pooled_gaussians(clients: Mapping[int, ClassMixtures]) -> ClassMixtures:
    """Return the Gaussian of every class over all clients: Sigma_c is the sample covariance of the class's samples.

    Sigma_c = [ sum_k (n_kc - 1) S_kc + sum_k n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T ] / (N_c - 1), 0 where N_c = 1.

    Parameters
    ----------
    clients : mapping
        From each client's number, in whose order it is added, to one Gaussian with a full covariance per class.

    Raises
    ------
    ValueError
        If there are no clients, or their mixtures are others.
    """
    ordered = [client for _, client in sorted(clients.items())]
    if not ordered:
        raise ValueError("clients: there must be at least one, got none")
    for client in ordered:
        if client.covariance != "full" or client.weights.shape[1] != 1:
            raise ValueError(
                f"CCVR needs one Gaussian with a full covariance per class, "
                f"got {client.weights.shape[1]} {client.covariance}"
            )
    ids = torch.unique(torch.cat([client.class_ids for client in ordered]))
    counts, means = ids.new_zeros(len(ids)), torch.zeros(len(ids), ordered[0].feature_dim, dtype=torch.float64)
    for rows, client in _placed(ordered, ids):
        counts[rows] += client.counts
        means[rows] += client.counts.unsqueeze(1) * client.means[:, 0]
    means /= counts.unsqueeze(1)
    scatter = torch.zeros(*means.shape, means.shape[1], dtype=torch.float64)
    for rows, client in _placed(ordered, ids):
        for own, row in enumerate(rows.tolist()):
            count, apart = int(client.counts[own]), client.means[own, 0] - means[row]
            scatter[row].add_(client.covariances[own, 0], alpha=count - 1).addr_(apart, apart, alpha=count)
    scatter /= (counts - 1).clamp(min=1).reshape(-1, 1, 1)
    ones = torch.ones(len(ids), 1, dtype=torch.float64)
    return ClassMixtures(ids, counts, ones, means.unsqueeze(1), scatter.unsqueeze(1))


def ccvr_samples(clients: Mapping[int, ClassMixtures], *, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw as many features of every class from its pooled Gaussian.

    Parameters
    ----------
    clients : mapping
        As :func:`pooled_gaussians`.
    per_class : int
        At least 1; CCVR draws some hundreds to two thousand.
    seed : int
        At least 0.

    Returns
    -------
    features, labels : Tensor
        As :func:`research.baselines.drawing.drawn_samples`.

    Raises
    ------
    ValueError
        If per_class is below 1, or as :func:`pooled_gaussians`.
    """
    if per_class < 1:
        raise ValueError(f"per_class must be at least 1, got {per_class}")
    pooled = pooled_gaussians(clients)
    return drawn_samples(pooled, torch.full_like(pooled.counts, per_class), (seed,))


def _placed(clients: Iterable[ClassMixtures], ids: Tensor) -> Iterable[tuple[Tensor, ClassMixtures]]:
    """Yield every client's rows among all classes."""
    for client in clients:
        yield torch.searchsorted(ids, client.class_ids), client
