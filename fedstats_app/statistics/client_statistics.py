"""One client's message as a value: class rows and, where asked for, the Gram matrix. One pass serves every method."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.base.threads import threads_worth
from fedstats_app.statistics.accumulation import (
    Summable,
    accumulation_device,
    add_in_blocks,
    add_rows_to_gram,
    check_features,
    check_labels,
    check_tensor,
    mirror_upper,
)
from fedstats_app.statistics.class_mean_rows import ClassMeanRows, plan_rows
from fedstats_app.statistics.exact import on_grid
from fedstats_app.statistics.factors import ScatterFactor, TriangularFactor
from fedstats_app.statistics.feature_statistics import FeatureStatistics
from fedstats_app.statistics.target_sums import TargetSums


class ClientStatistics(Summable):
    """Rows (class, count, class sum) and more of the same samples, where asked for; immutable by convention.

    From the rows follow FedNCM and FedCOF, from rows and Gram matrix together Fed3R and FedCGS, from rows and a factor
    of the scatter about their means FedRoot. The Gram matrix is the scatter within rows and what the rows' means have
    of it, so that it agrees with the means however these were rounded on the wire.

    Parameters
    ----------
    rows : ClassMeanRows
        One or several rows per class present.
    gram : Tensor or None
        The Gram matrix itself, (d, d) float64, where it is exact or a sum of several clients'.
    scatter : ScatterFactor or None
        The largest directions of the scatter about the means of the rows.
    within : Tensor, TriangularFactor or None
        The complete scatter about the means of the rows, (d, d) float64, or its factor; in place of ``gram``.
    completed : bool
        Whether the scatter within rows was made from a truncated factor.
    targets : TargetSums or None
        Of samples with several labels or numbers, which are all in one row.

    Raises
    ------
    ValueError
        If a matrix is of another size or dtype.

    Examples
    --------
    >>> features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 1, 1])
    >>> ClientStatistics(ClassMeanRows.from_features(features, labels, 2), features.double().T @ features.double())
    <ClientStatistics of 3 samples: 2 rows, 2 features, with Gram matrix>
    """

    def __init__(
        self,
        rows: ClassMeanRows,
        gram: Tensor | None = None,
        scatter: ScatterFactor | None = None,
        *,
        within: Tensor | TriangularFactor | None = None,
        completed: bool = False,
        targets: TargetSums | None = None,
    ) -> None:
        self.rows, self.scatter, self.completed, self.targets = rows, scatter, completed, targets
        self._complete: ScatterFactor | None = None
        self.given_gram, self._gram, self._within = gram, gram, within
        square = (rows.feature_dim, rows.feature_dim)
        if gram is not None:
            check_tensor("gram", gram, square, torch.float64)
        if isinstance(within, TriangularFactor):
            check_tensor("triangular factor", within.trapezoid, (None, rows.feature_dim), torch.float64)
        elif within is not None:
            check_tensor("within", within, square, torch.float64)

    def __repr__(self) -> str:
        kind = f"{len(self.rows)} rows, {self.rows.feature_dim} features, with{'out' * (not self.has_gram)} Gram matrix"
        return f"<ClientStatistics of {self.rows.num_examples} samples: {kind}>"

    @property
    def has_gram(self) -> bool:
        """True if there is a Gram matrix."""
        return self._gram is not None or self._within is not None

    @property
    def gram(self) -> Tensor | None:
        """(d, d) float64 Gram matrix, or None; formed from the scatter once, where there is one."""
        if self._gram is None and self._within is not None:
            matrix = self._within.scatter() if isinstance(self._within, TriangularFactor) else self._within
            self._gram = mirror_upper(matrix + self.rows.products())
        return self._gram

    def add_gram_to(self, total: Tensor) -> None:
        """Add the Gram matrix to a (d, d) float64 matrix, in place, without forming it where there is a factor.

        Raises
        ------
        ValueError
            If there is none.
        """
        if isinstance(self._within, TriangularFactor):
            add_rows_to_gram(total, torch.cat([self._within.trapezoid, self.rows.scaled_sums]))
        elif self.gram is not None:
            total.add_(self.gram)
        else:
            raise ValueError("statistics to add must have a Gram matrix, got none")

    @property
    def within(self) -> Tensor | TriangularFactor | None:
        """The complete scatter about the means of the rows, or its factor, or None; formed from ``gram`` once."""
        if self._within is None and self._gram is not None:
            self._within = mirror_upper(self._gram - self.rows.products())
        return self._within

    def scatter_factor(self) -> ScatterFactor | None:
        """Return the complete factor, made of the scatter within rows once where there is one, else ``scatter``."""
        if self.within is None:
            return self.scatter
        if self._complete is None:
            self._complete = ScatterFactor.of_scatter(self.within, self.rows)
        return self._complete

    def with_scatter(self, scatter: ScatterFactor) -> ClientStatistics:
        """Return the same with another factor of the scatter."""
        client = copy.copy(self)
        client.scatter = scatter
        return client

    def __add__(self, other: ClientStatistics) -> ClientStatistics:
        """Return both clients' statistics: rows stacked, Gram matrices added. Factors of scatter have no sum."""
        if not isinstance(other, ClientStatistics):
            return NotImplemented
        if self.has_gram != other.has_gram:
            raise ValueError("statistics to add must both have a Gram matrix or both have none, got one of each")
        gram = None if self.gram is None or other.gram is None else self.gram + other.gram
        if self.targets is None or other.targets is None:
            return ClientStatistics(self.rows + other.rows, gram)
        return ClientStatistics(self.rows + other.rows, gram, targets=self.targets + other.targets)

    def summed(self) -> FeatureStatistics:
        """Return class counts, class sums and Gram matrix."""
        return replace(self.rows.summed(self.gram), targets=self.targets)


class StatisticsAccumulator:
    """Forms one client's statistics while batches of features arrive, in no more memory than sums and Gram matrix take.

    Parameters
    ----------
    labels : Tensor
        (n,) integers in [0, num_classes): the labels of all samples that will come, in their order.
    num_classes, feature_dim : int
        C and d.
    gram : bool
        Whether to form the scatter within rows: itself, or where there are fewer samples than features its factor, of
        the features, which are fewer numbers. With ``fraction_bits`` the Gram matrix in its place.
    scatter : RankRule or None
        Whether to form the factor of the scatter, of no fewer directions than the rule wants.
    means_per_class : int
        See :func:`plan_rows`.
    min_samples_per_mean : int
        Fewer samples than this share a mean only where their class has no more.
    generator : torch.Generator, optional
        See :func:`plan_rows`.
    device : torch.device or str
        Where features arrive; sums are formed there, in float64.
    planned : tuple of Tensor, optional
        Class of each row, and row of each sample, in place of what would be drawn (:func:`plan_rows`).
    fraction_bits : int, optional
        To which features are rounded, so that the Gram matrix is exact; the scatter would not be.
    targets : tuple, optional
        Of what kind they are, and (n, C) float64, NaN where one is unknown (:class:`TargetSums`).
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        feature_dim: int,
        *,
        gram: bool,
        scatter: RankRule | None = None,
        means_per_class: int = 1,
        min_samples_per_mean: int = 2,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        planned: tuple[Tensor, Tensor] | None = None,
        fraction_bits: int | None = None,
        targets: tuple[str, Tensor] | None = None,
    ) -> None:
        check_labels(labels, num_classes)
        self._labels, self._num_classes = labels.to(device="cpu", dtype=torch.int64), num_classes
        self._class_ids, self._row_of_sample = planned or plan_rows(
            labels, means_per_class=means_per_class, min_samples_per_mean=min_samples_per_mean, generator=generator
        )
        where = accumulation_device(torch.device(device))
        self._sums = torch.zeros(len(self._class_ids), feature_dim, dtype=torch.float64, device=where)
        few, self._fraction_bits = len(labels) < feature_dim and fraction_bits is None, fraction_bits
        self._gram = self._features = None
        self._wants_gram, self._scatter_rule = gram, scatter
        if gram or scatter is not None:
            # The features themselves where they are few, zero where one does not come; else the Gram matrix.
            rows = len(labels) if few else feature_dim
            kept = torch.zeros(rows, feature_dim, dtype=torch.float64, device=where)
            self._features, self._gram = (kept, None) if few else (None, kept)
        self._targets, self._target_sums = targets, None
        if targets is not None:
            self._target_sums = TargetSums.zeros(targets[0], targets[1].shape[1], feature_dim)
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
        with threads_worth(features.numel()):
            if positions is None:
                positions = torch.arange(self._seen, self._seen + len(features))
            if features.ndim != 2 or features.shape[1] != self._sums.shape[1]:
                raise ValueError(f"features must have shape (b, {self._sums.shape[1]}), got {tuple(features.shape)}")
            if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= len(self._labels)):
                raise ValueError(f"features must belong to the {len(self._labels)} labelled samples, got more")
            if bool(self._taken[positions].any()) or len(torch.unique(positions)) < len(positions):
                raise ValueError("each labelled sample gives one feature, got one twice")
            check_features(features, self._labels[positions], self._num_classes)
            if self._fraction_bits is not None:
                features = on_grid(features, self._fraction_bits)
            self._taken[positions] = True
            rows = self._row_of_sample[positions]
            add_in_blocks(self._sums, self._gram, features, rows)
            if self._targets is not None and self._target_sums is not None:
                self._target_sums.add_(features, self._targets[1][positions])
            if self._features is not None:
                where = self._features.device
                self._features[positions.to(where)] = features.to(device=where, dtype=torch.float64)
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
        with threads_worth(len(self._labels) * self._sums.shape[1]):
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
            gram, scatter = None, None
            within: Tensor | TriangularFactor | None = None
            if self._features is not None:
                features = self._features.cpu()[self._taken]
                row = (torch.cumsum(kept, 0) - 1)[self._row_of_sample[self._taken]]
                if self._wants_gram:
                    within = TriangularFactor.of_features(features, rows, row)
                if (rule := self._scatter_rule) is not None:
                    scatter = ScatterFactor.of_features(features, rows, row, rule.most(int(rows.num_examples)))
            elif self._gram is not None:
                client = ClientStatistics(rows, mirror_upper(self._gram).cpu())
                if self._wants_gram and self._fraction_bits is not None:
                    gram = client.gram
                elif self._wants_gram:
                    within = client.within
                if self._scatter_rule is not None:
                    scatter = client.scatter_factor()
            return ClientStatistics(rows, gram, scatter, within=within, targets=self._target_sums)


def client_digest(client: ClientStatistics) -> str:
    """Identify a client's statistics: the SHA-256 of its counts and its class sums in float32.

    It does not depend on how classes are numbered, nor on whether sums travelled in float32 or float64. It does
    not reveal the statistics, but recognises them. A client without samples has none: "".
    """
    rows = client.rows
    if not len(rows):
        return ""
    sums = rows.class_sums.to("cpu", torch.float32).numpy().astype("<f4")
    counts = rows.counts.to("cpu").numpy().astype("<i8")
    of_counts, of_sums = counts.tobytes(), sums.tobytes()
    step = len(of_sums) // len(rows)
    parts = sorted(
        of_counts[8 * row : 8 * (row + 1)] + of_sums[step * row : step * (row + 1)] for row in range(len(rows))
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()
