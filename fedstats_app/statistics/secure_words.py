"""Statistics as words whose sum is that of the statistics: what is masked.

All are whole numbers, since features are on a grid (:mod:`fedstats_app.statistics.exact`). They are added modulo 2^64,
and travel modulo the least 2^(8 k) that holds the sum of as many samples as there can be. What a client has does not
change how it answers: where there are more samples, only the sum is wrong, and its reader sees the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.statistics.accumulation import mirror_upper, pack_upper, unpack_upper
from fedstats_app.statistics.exact import fraction_bits
from fedstats_app.statistics.feature_statistics import FeatureStatistics
from fedstats_app.statistics.target_sums import TargetSums

Words = list[NDArray[np.uint64]]
# Of each array of a sum: how many words, and bytes of each.
Shapes = list[tuple[int, int]]
WORD_BYTES = 8
# Beside the sign, for what rounding adds.
_SPARE_BITS = 2


@dataclass(frozen=True)
class SecureLayout:
    """Words in which statistics travel: the same for all clients of a run.

    Attributes
    ----------
    feature_dim : int
        d, of the mapped features.
    samples : int
        As many as all clients can have together.
    norm : float
        No feature is longer.
    gram : bool
        Whether the Gram matrix is summed.
    spread : bool
        Whether the products of clients' class means are summed, for FedCOF.
    labels : bool
        Whether samples have several labels, the first of which all have: then each label has two counts and two sums,
        of the samples for which it is known and of the positive ones.
    """

    feature_dim: int
    samples: int
    norm: float
    gram: bool = False
    spread: bool = False
    labels: bool = False

    @property
    def bits(self) -> int:
        """Bits of fraction of the features."""
        return fraction_bits(self.samples, self.norm, squares=self.gram or self.spread)

    def shapes(self, num_classes: int) -> Shapes:
        """List number and bytes of the words of each array of a sum over ``num_classes`` classes."""
        largest, triangle = self.samples * self.norm * 2.0**self.bits, self.feature_dim * (self.feature_dim + 1) // 2
        squares = [(triangle, _bytes_for(largest * self.norm * 2.0**self.bits))] * (self.gram + self.spread)
        return [
            (num_classes * (1 + self.labels), WORD_BYTES),  # so that too many samples are always seen
            (num_classes * (1 + self.labels) * self.feature_dim, _bytes_for(largest)),
            *squares,
        ]

    def words(self, statistics: FeatureStatistics, classes: Tensor, weights: Tensor) -> Words:
        """Return the words of a client's statistics.

        Parameters
        ----------
        statistics : FeatureStatistics
            Of features on the grid, and of samples of the classes that are summed only.
        classes : Tensor
            (C,) bool, those that are summed.
        weights : Tensor
            (C,) float64 w_c, at most 1, of sum_c w_c n_c m_c m_c^T with m_c the client's class means.
        """
        counts, sums = statistics.class_counts[classes], statistics.class_sums[classes]
        if self.labels and statistics.targets is not None:
            own = statistics.targets.chosen(classes)
            counts, sums = torch.cat([own.known, own.sums.long()]), torch.cat([own.known_sums, own.products])
        numbers = [counts, sums.flatten() * 2.0**self.bits]
        if self.gram:
            if statistics.gram is None:
                raise ValueError("this sum needs the Gram matrix, got statistics without one")
            numbers.append(pack_upper(statistics.gram) * 4.0**self.bits)
        if self.spread:
            scale = (weights / statistics.class_counts.clamp(min=1)).sqrt().unsqueeze(1)
            scaled = statistics.class_sums * scale * 2.0**self.bits
            numbers.append(pack_upper(scaled.T @ scaled).round())
        return [as_words(part) for part in numbers]

    def read(self, words: Words, classes: Tensor) -> tuple[FeatureStatistics, Tensor | None]:
        """Return the statistics of a sum, and (d, d) float64 the sum of the products of means; None without.

        Raises
        ------
        ValueError
            If no clients' statistics give this sum: some client sent other words, or there are more samples than
            declared.
        """
        shapes = self.shapes(int(classes.sum()))
        parts = [numbers_of(part, size) for part, (_, size) in zip(words, shapes, strict=True)]
        if self.labels:
            return self._read_labels(parts, classes), None
        counts = torch.zeros(len(classes), dtype=torch.int64)
        sums = torch.zeros(len(classes), self.feature_dim, dtype=torch.float64)
        counts[classes] = parts[0].to(torch.int64)
        sums[classes] = parts[1].reshape(-1, self.feature_dim) * 2.0**-self.bits
        squares = [unpack_upper(part * 4.0**-self.bits, self.feature_dim) for part in parts[2:]]
        total = FeatureStatistics(counts, sums, squares[0] if self.gram else None)
        self._check(total)
        return total, squares[-1] if self.spread else None

    def _read_labels(self, parts: Sequence[Tensor], classes: Tensor) -> FeatureStatistics:
        """Return the statistics of samples with several labels, without the one that all have."""
        known, positive = parts[0].to(torch.int64).reshape(2, -1)
        of_known, products = (parts[1] * 2.0**-self.bits).reshape(2, -1, self.feature_dim)
        gram = unpack_upper(parts[2] * 4.0**-self.bits, self.feature_dim) if self.gram else None
        for counts, sums in ((known, of_known), (positive, products)):
            self._check(FeatureStatistics(counts[:1], sums[:1], gram))
            for place in range(1, len(counts)):
                self._check(FeatureStatistics(counts[place : place + 1], sums[place : place + 1]))
        if bool((positive > known).any()) or bool((known > known[0]).any()) or not torch.equal(known[:1], positive[:1]):
            raise ValueError(
                "a sum is out of its range: a label has more positive samples than known ones, or than all"
            )
        sums = positive.to(torch.float64)
        targets = TargetSums(("labels",), known, of_known, sums, sums.clone(), products)
        number, ids = len(classes) - 1, classes.nonzero().squeeze(1)
        counts, totals = (
            torch.zeros(number, dtype=torch.int64),
            torch.zeros(number, self.feature_dim, dtype=torch.float64),
        )
        counts[0], totals[0] = known[0], of_known[0]
        labels = targets.chosen(torch.arange(1, len(known))).placed(ids[1:] - 1, number)
        return FeatureStatistics(counts, totals, gram, labels)

    def _check(self, total: FeatureStatistics) -> None:
        number, of_class = total.num_examples, total.class_counts
        if int(of_class.min()) < 0 or number > self.samples:
            raise ValueError(
                f"a sum is out of its range: it has room for {self.samples} samples (max-client-samples of each "
                f"client), got {number if int(of_class.min()) >= 0 else 'a class with fewer than 0'}"
            )
        longest = torch.linalg.vector_norm(total.class_sums, dim=1)
        # Rounding lengthens a feature by half a step for each of its numbers, at most.
        norm = self.norm + math.sqrt(self.feature_dim) * 2.0 ** -(self.bits + 1)
        if bool((longest > of_class * norm * (1 + 1e-9)).any()):
            raise ValueError(f"a sum is out of its range: features are up to {self.norm:.4g} long, got longer ones")
        diagonal = torch.zeros(1) if total.gram is None else total.gram.diagonal()
        if float(diagonal.min()) < 0 or float(diagonal.sum()) > number * norm**2 * (1 + 1e-9):
            raise ValueError("a sum is out of its range: squares of features are below 0, or too large")


def fedcof_scatter(products: Tensor, total: FeatureStatistics, weights: Tensor, left: Tensor) -> Tensor:
    """Return FedCOF's (d, d) float64 scatter, of all clients' products of class means.

    sum_c (N_c - 1) Sigma_c, Sigma_c = S_c / (K_c - 1), S_c = sum_k n_kc m_kc m_kc^T - N_c mu_c mu_c^T (Goswami et al.
    2025, appendix I.2, whose second phase sums S_c about means that the server has sent). No client knows N_c
    beforehand: every class counts as mean size less 1, which is exact where classes are of one size.

    Parameters
    ----------
    products : Tensor
        (d, d) sum_c w_c sum_k n_kc m_kc m_kc^T.
    total : FeatureStatistics
        Sums over the same clients.
    weights : Tensor
        (C,) float64 w_c = 1 / (K_c - 1) of the clients that were asked; 0 for classes that are not summed.
    left : Tensor
        (C,) int64, the clients left that have each class.
    """
    scaled = total.class_means * (weights * total.class_counts).sqrt().unsqueeze(1)
    counts, several = total.class_counts[weights > 0], float((weights * (left - 1)).sum())
    mean_freedom = float((counts - 1).clamp(min=0).sum()) / max(several, 1e-300)
    return mirror_upper(products - scaled.T @ scaled) * mean_freedom


def mean_weights(holders: Tensor, classes: Tensor) -> Tensor:
    """Return (C,) float64 1 / (K_c - 1) of the (C,) clients that have each class; 0 for classes that are not summed."""
    return torch.where(classes, 1.0 / (holders - 1).clamp(min=1).to(torch.float64), 0.0)


def _bytes_for(largest: float) -> int:
    """Return how many bytes hold numbers up to this one on either side of 0."""
    return math.ceil((math.log2(max(largest, 1.0)) + 1 + _SPARE_BITS) / 8)


def as_words(values: Tensor) -> NDArray[np.uint64]:
    """Write whole numbers as words that wrap around."""
    return values.to(torch.int64).numpy().astype(np.uint64)


def numbers_of(words: NDArray[np.uint64], size: int = WORD_BYTES) -> Tensor:
    """Read words modulo 2^(8 size) as float64 numbers with a sign."""
    unused = np.uint64(8 * (WORD_BYTES - size))
    return torch.from_numpy(((words << unused).view(np.int64) >> unused.astype(np.int64)).astype(np.float64))


def packed(words: Words, shapes: Shapes) -> list[Tensor]:
    """Return words modulo 2^(8 size) as (n, size) uint8 tensors, the lowest byte first."""
    return [
        torch.from_numpy(np.ascontiguousarray(part.astype("<u8").view(np.uint8).reshape(-1, WORD_BYTES)[:, :size]))
        for part, (_, size) in zip(words, shapes, strict=True)
    ]


def unpacked(tensors: Sequence[Tensor]) -> Words:
    """Return the words that :func:`packed` was given, modulo 2^(8 size)."""
    found = []
    for part in tensors:
        words = np.zeros((len(part), WORD_BYTES), np.uint8)
        words[:, : part.shape[1]] = part.numpy()
        found.append(words.view("<u8").reshape(-1).astype(np.uint64))
    return found
