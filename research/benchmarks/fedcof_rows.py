"""Synthetic rows of a large federation, and FedCOF's head computed the way the papers' code goes about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Half of the means are of a single sample, as in natural federations: 120,000 samples give 54,590 means.
SINGLE_SAMPLE_SHARE = 0.455
# Size of a feature and of its spread, about that of MobileNetV2's pooled features.
FEATURE_SCALE = 0.4


@dataclass(frozen=True)
class Size:
    """Numbers of clients, classes C, rows M and feature dimensions d."""

    clients: int
    classes: int
    rows: int
    dim: int

    def __post_init__(self) -> None:
        if min(self.clients, self.classes, self.rows, self.dim) < 1:
            raise ValueError(f"every size must be at least 1, got {self}")
        if self.rows > self.clients * self.classes:
            raise ValueError(f"rows must be at most clients x classes = {self.clients * self.classes}, got {self.rows}")


def synthetic_rows(size: Size, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return class ids (M,) int64, counts (M,) int64 and means (M, d) float32, sorted by client, then class.

    Features are non-negative like a pooled ReLU's, and classes differ in how many clients have them.
    """
    rng = np.random.default_rng(seed)
    clients_of_class = _uneven_presence(size, rng)
    class_ids = np.repeat(np.arange(size.classes), clients_of_class)
    clients = np.concatenate([rng.choice(size.clients, present, replace=False) for present in clients_of_class])
    class_ids = class_ids[np.lexsort((class_ids, clients))]
    counts = rng.geometric(SINGLE_SAMPLE_SHARE, size.rows)
    means = torch.from_numpy(rng.standard_normal((size.rows, size.dim), dtype=np.float32))
    means *= torch.from_numpy((FEATURE_SCALE / np.sqrt(counts)).astype(np.float32)).unsqueeze(1)
    centres = torch.from_numpy(rng.exponential(FEATURE_SCALE, (size.classes, size.dim)).astype(np.float32))
    for row, class_id in enumerate(class_ids.tolist()):
        means[row] += centres[class_id]
    return torch.from_numpy(class_ids), torch.from_numpy(counts.astype(np.int64)), means.relu_()


def _uneven_presence(size: Size, rng: np.random.Generator) -> np.ndarray:
    """Return how many clients have each class: (C,), summing to M, from common to rare."""
    popularity = rng.pareto(1.5, size.classes) + 0.05
    expected = np.floor(size.rows * popularity / popularity.sum())
    present: np.ndarray = np.minimum(expected, size.clients).astype(np.int64)
    while (missing := size.rows - int(present.sum())) > 0:
        open_classes = np.flatnonzero(present < size.clients)
        present[rng.permutation(open_classes)[:missing]] += 1
    return present


def fedcof_as_published(class_ids: Tensor, counts: Tensor, means: Tensor, num_classes: int, gamma: float) -> Tensor:
    """Return FedCOF's (C, d) float32 head, unit rows, as the authors' server goes about it.

    In its order and precision: means are taken one by one as clients sent them, every class gets its covariance matrix,
    all of which are kept until they are added up, and each class is multiplied with a pseudo-inverse.
    """
    dim = means.shape[1]
    class_sums = [torch.zeros(dim) for _ in range(num_classes)]
    received: list[list[Tensor]] = [[] for _ in range(num_classes)]
    received_counts: list[list[float]] = [[] for _ in range(num_classes)]
    for class_id, count, mean in zip(class_ids.tolist(), counts.tolist(), means.unbind(), strict=True):
        class_sums[class_id] += mean * float(count)
        received[class_id].append(mean)
        received_counts[class_id].append(float(count))
    covariances: dict[int, Tensor] = {}
    for class_id in range(num_classes):
        if received[class_id]:
            weights = torch.tensor(received_counts[class_id])
            centred = torch.stack(received[class_id]) - class_sums[class_id] / weights.sum()
            centred *= weights.sqrt().unsqueeze(1)
            covariance = centred.T @ centred / max(len(weights) - 1, 1)
            covariances[class_id] = covariance + gamma * torch.eye(dim)
    gram = torch.zeros(dim, dim)
    for class_id, covariance in covariances.items():
        gram += (sum(received_counts[class_id]) - 1) * covariance
    num_examples = float(counts.sum())
    global_mean = torch.stack(class_sums).sum(dim=0) / num_examples
    inverse = torch.linalg.pinv(gram + num_examples * torch.outer(global_mean, global_mean))
    return torch.nn.functional.normalize(torch.stack([inverse @ class_sum for class_sum in class_sums]))
