"""The papers' formulas, class by class and matrix by matrix in float64 numpy: slow, and nothing clever."""

from typing import NamedTuple

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


def unit_rows(weight: np.ndarray) -> np.ndarray:
    """Divide each row by its norm; a zero row stays zero."""
    norm = np.linalg.norm(weight, axis=1, keepdims=True)
    return weight / np.where(norm > 0, norm, 1.0)
