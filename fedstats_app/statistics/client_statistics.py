"""One client's message as a value: class rows and, where asked for, the Gram matrix. One pass serves every method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import (
    accumulation_device,
    add_in_blocks,
    added_grams,
    check_features,
    mirror_upper,
)
from fedstats_app.statistics.class_mean_rows import ClassMeanRows, plan_rows
from fedstats_app.statistics.feature_statistics import FeatureStatistics


@dataclass(frozen=True, eq=False)
class ClientStatistics:
    """Rows (class, count, class sum) and an optional Gram matrix of the same samples.

    From the rows follow FedNCM and FedCOF, from rows and Gram matrix together Fed3R and FedCGS.

    Attributes
    ----------
    rows : ClassMeanRows
        One or several rows per class present.
    gram : Tensor or None
        (d, d) float64.
    """

    rows: ClassMeanRows
    gram: Tensor | None = None

    def __post_init__(self) -> None:
        dim = self.rows.feature_dim
        if self.gram is not None and (self.gram.shape != (dim, dim) or self.gram.dtype != torch.float64):
            raise ValueError(
                f"gram must be ({dim}, {dim}) float64 as the rows say, got {tuple(self.gram.shape)} {self.gram.dtype}"
            )

    def __add__(self, other: ClientStatistics) -> ClientStatistics:
        """Return both clients' statistics: rows stacked, Gram matrices added."""
        if not isinstance(other, ClientStatistics):
            return NotImplemented
        return ClientStatistics(self.rows + other.rows, added_grams(self.gram, other.gram))

    def summed(self) -> FeatureStatistics:
        """Return class counts, class sums and Gram matrix."""
        return self.rows.summed(self.gram)


class StatisticsAccumulator:
    """Forms one client's statistics while batches of features arrive, so that no client holds all its features.

    Parameters
    ----------
    labels : Tensor
        (n,) integers in [0, num_classes): the labels of all samples that will come, in their order.
    num_classes, feature_dim : int
        C and d.
    gram : bool
        Whether to form the Gram matrix.
    means_per_class : int
        See :meth:`ClassMeanRows.from_features`.
    min_samples_per_mean : int
        Fewer samples than this share a mean only where their class has no more.
    generator : torch.Generator, optional
        See :meth:`ClassMeanRows.from_features`.
    device : torch.device or str
        Where features arrive; sums are formed there, in float64.
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        feature_dim: int,
        *,
        gram: bool,
        means_per_class: int = 1,
        min_samples_per_mean: int = 2,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        check_features(torch.zeros(len(labels), 1), labels, num_classes)
        self._labels, self._num_classes = labels.to(device="cpu", dtype=torch.int64), num_classes
        self._class_ids, self._row_of_sample = plan_rows(
            labels,
            means_per_class=means_per_class,
            min_samples_per_mean=min_samples_per_mean,
            generator=generator,
        )
        where = accumulation_device(torch.device(device))
        self._sums = torch.zeros(len(self._class_ids), feature_dim, dtype=torch.float64, device=where)
        self._gram = torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=where) if gram else None
        self._counts = torch.zeros(len(self._class_ids), dtype=torch.int64)
        self._taken = torch.zeros(len(labels), dtype=torch.bool)
        self._seen = 0

    def update(self, features: Tensor, positions: Tensor | None = None) -> None:
        """Add the next (b, d) features.

        Parameters
        ----------
        features : Tensor
            (b, d) floating point.
        positions : Tensor, optional
            (b,) int64, which of the labelled samples these are, each at most once over all calls. By default those
            that follow the ones already seen; give it where samples turned out to be unreadable.

        Raises
        ------
        ValueError
            If a position is out of range or came before, the dimension differs, or a feature is not finite; nothing is
            added then.
        """
        if positions is None:
            positions = torch.arange(self._seen, self._seen + len(features))
        if features.ndim != 2 or features.shape[1] != self._sums.shape[1]:
            raise ValueError(f"features must have shape (b, {self._sums.shape[1]}), got {tuple(features.shape)}")
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= len(self._labels)):
            raise ValueError(f"features must belong to the {len(self._labels)} labelled samples, got more")
        if bool(self._taken[positions].any()) or len(torch.unique(positions)) < len(positions):
            raise ValueError("each labelled sample gives one feature, got one twice")
        check_features(features, self._labels[positions], self._num_classes)
        self._taken[positions] = True
        rows = self._row_of_sample[positions]
        add_in_blocks(self._sums, self._gram, features, rows)
        self._counts.index_add_(0, rows, torch.ones_like(rows))
        self._seen += len(features)

    def statistics(self, *, skipped: int = 0) -> ClientStatistics:
        """Return the statistics on the CPU; a row none of whose samples could be read is left out.

        Parameters
        ----------
        skipped : int
            How many of the labelled samples gave no feature.

        Raises
        ------
        ValueError
            If features and skipped samples together are not as many as there are labels.
        """
        if self._seen + skipped != len(self._labels):
            raise ValueError(
                f"features of all {len(self._labels)} labelled samples must come, "
                f"got {self._seen} and {skipped} skipped"
            )
        kept = self._counts > 0
        rows = ClassMeanRows(
            self._class_ids[kept],
            self._counts[kept],
            num_classes=self._num_classes,
            class_sums=self._sums.cpu()[kept],
        )
        return ClientStatistics(rows, None if self._gram is None else mirror_upper(self._gram).cpu())
