"""The papers' formulas, class by class and matrix by matrix in float64 numpy: slow, and nothing clever."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedstats_app.statistics import ClassMeanRows


class LiteralFedCOF(NamedTuple):
    """Class covariances with gamma I (absent classes are missing), Gram matrix, and rows before normalisation."""

    covariances: dict[int, np.ndarray]
    gram: np.ndarray
    raw_weight: np.ndarray


def fedcof(
    rows: ClassMeanRows, gamma: float, *, divisor: int | None = None, between_class: bool = False
) -> LiteralFedCOF:
    """Goswami et al. 2025, eq. 5 and 6; ``divisor`` is the paper's literal K in place of K_c."""
    means, counts = rows.means.numpy(), rows.counts.numpy().astype(np.float64)
    ids, dim = rows.class_ids.numpy(), rows.feature_dim
    covariances: dict[int, np.ndarray] = {}
    class_sums = np.zeros((rows.num_classes, dim))
    gram, total = np.zeros((dim, dim)), 0.0
    between = np.zeros((dim, dim))
    for c in range(rows.num_classes):
        mine = ids == c
        if not mine.any():
            continue
        count = counts[mine].sum()
        class_sums[c] = (counts[mine, None] * means[mine]).sum(axis=0)
        class_mean = class_sums[c] / count
        scatter = np.zeros((dim, dim))
        for mean, n in zip(means[mine], counts[mine], strict=True):
            scatter += n * np.outer(mean - class_mean, mean - class_mean)
        freedom = (mine.sum() if divisor is None else divisor) - 1
        covariances[c] = scatter / max(freedom, 1) + gamma * np.eye(dim)
        gram += max(count - 1, 0.0) * covariances[c]
        between += count * np.outer(class_mean, class_mean)
        total += count
    global_mean = class_sums.sum(axis=0) / total
    gram += between if between_class else total * np.outer(global_mean, global_mean)
    return LiteralFedCOF(covariances, gram, np.linalg.solve(gram, class_sums.T).T)


def oracle_gram(
    features: np.ndarray,
    labels: np.ndarray,
    clients: np.ndarray,
    gamma: float,
    shape: Literal["full", "diag", "spherical"],
) -> np.ndarray:
    """FedCOF's Gram matrix from the clients' own covariances: Goswami et al. 2025, eq. 24, and its two ablations."""
    features, dim = features.astype(np.float64), features.shape[1]
    gram = len(features) * np.outer(features.mean(axis=0), features.mean(axis=0))
    for c in np.unique(labels):
        mine = labels == c
        count = int(mine.sum())
        if count == 1:  # weight N_c - 1 = 0
            continue
        class_mean = features[mine].mean(axis=0)
        covariance = -count / (count - 1) * np.outer(class_mean, class_mean) + gamma * np.eye(dim)
        for k in np.unique(clients[mine]):
            own = features[mine & (clients == k)]
            mean = own.mean(axis=0)
            covariance += len(own) / (count - 1) * np.outer(mean, mean)
            if len(own) > 1:
                covariance += (len(own) - 1) / (count - 1) * _reduced(np.atleast_2d(np.cov(own, rowvar=False)), shape)
        gram += (count - 1) * covariance
    return gram


def _reduced(covariance: np.ndarray, shape: Literal["full", "diag", "spherical"]) -> np.ndarray:
    if shape == "diag":
        return np.diag(np.diag(covariance))
    if shape == "spherical":
        return np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return covariance


def unit_rows(weight: np.ndarray) -> np.ndarray:
    """Divide each row by its norm; a zero row stays zero."""
    norm = np.linalg.norm(weight, axis=1, keepdims=True)
    return weight / np.where(norm > 0, norm, 1.0)
