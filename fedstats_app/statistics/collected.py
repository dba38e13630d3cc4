"""The server's side: clients folded into one sum, one client taken out of it, and sums kept for later runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import (
    add_to_gram,
    add_to_group_sums,
    check_tensor,
    mirror_upper,
)
from fedstats_app.statistics.class_mean_rows import ClassMeanRows
from fedstats_app.statistics.client_statistics import ClientStatistics
from fedstats_app.statistics.factors import LowRankStatistics
from fedstats_app.statistics.feature_statistics import FeatureStatistics
from fedstats_app.statistics.specification import StatisticsSpec
from fedstats_app.statistics.target_sums import TargetSums

Made = TypeVar("Made")

# Bytes of clients' rows that are stacked together: more than the C library ever keeps when they are freed.
BYTES_PER_PART = 64 * 2**20


class StatisticsSum:
    """Folds clients into one sum in place, so that a server's memory does not grow with their number.

    Fold in a fixed order: floating-point addition is not associative, and the same order gives the same bytes.

    Parameters
    ----------
    num_classes, feature_dim : int
        C and d.
    gram : bool
        Whether clients carry Gram matrices.
    keep_rows : bool
        Whether to keep every row as well (FedCOF needs them: M x d numbers).
    scatter : bool
        Whether clients carry factors of their scatter.

    Attributes
    ----------
    num_classes, feature_dim : int
        C and d.
    has_gram, keeps_rows, has_scatter : bool
        What was asked for.
    num_rows, num_pairs : int
        Rows, and pairs of a client and a class that it has, so far.
    """

    def __init__(
        self, num_classes: int, feature_dim: int, *, gram: bool, keep_rows: bool, scatter: bool = False
    ) -> None:
        self._total = FeatureStatistics.zeros(num_classes, feature_dim, gram=gram)
        self._scatter = torch.zeros(feature_dim, feature_dim, dtype=torch.float64) if scatter else None
        self._left_out = 0.0
        self._parts: list[ClassMeanRows] = []
        # Of the parts the first are stacks of many clients' rows; bytes of those behind them.
        self._num_stacked = self._unstacked = 0
        self._made: dict[str, Any] = {}
        self.num_classes, self.feature_dim = num_classes, feature_dim
        self.has_gram, self.has_scatter, self.keeps_rows = gram, scatter, keep_rows
        self.num_rows = 0
        self.num_pairs = 0

    @classmethod
    def resumed(
        cls,
        summed: FeatureStatistics,
        rows: ClassMeanRows | None,
        *,
        num_rows: int,
        num_pairs: int,
        scatter: Tensor | None = None,
        left_out: float = 0.0,
    ) -> StatisticsSum:
        """Return the sum that :meth:`summed`, :meth:`rows`, :meth:`low_rank` came from, to fold further clients into.

        Parameters
        ----------
        summed : FeatureStatistics
            Copied.
        rows : ClassMeanRows or None
            Of the same samples; None where rows were not kept.
        num_rows, num_pairs : int
            Rows, and (client, class) pairs, that were folded.
        scatter, left_out
            As in :class:`LowRankStatistics`; None where clients carry no factors of their scatter.

        Raises
        ------
        ValueError
            If rows, scatter and sums have other shapes, or rows and sums other counts, or what is left out is negative.
        """
        shape = (summed.num_classes, summed.feature_dim)
        if rows is not None:
            if (rows.num_classes, rows.feature_dim) != shape or len(rows) != num_rows:
                raise ValueError(
                    f"rows must be {num_rows} of (classes, feature dimension) {shape}, "
                    f"got {len(rows)} of {(rows.num_classes, rows.feature_dim)}"
                )
            counts = torch.zeros_like(summed.class_counts).index_add_(0, rows.class_ids, rows.counts)
            if not torch.equal(counts, summed.class_counts):
                raise ValueError("rows must have the samples of the sums, got other counts")
        if scatter is not None:
            check_tensor("scatter", scatter, (shape[1], shape[1]), torch.float64)
        if not left_out >= 0.0:
            raise ValueError(f"what is left out must be at least 0, got {left_out}")
        total = cls(*shape, gram=summed.gram is not None, keep_rows=rows is not None, scatter=scatter is not None)
        total._scatter, total._left_out = None if scatter is None else scatter.clone(), left_out
        total._total = summed.clone()
        total._parts = [] if rows is None else [rows]
        total._num_stacked = len(total._parts)
        total.num_rows, total.num_pairs = num_rows, num_pairs
        return total

    def emptied(self) -> StatisticsSum:
        """Make a sum of the same kind over no clients."""
        kind = {"gram": self.has_gram, "keep_rows": self.keeps_rows, "scatter": self.has_scatter}
        return StatisticsSum(self.num_classes, self.feature_dim, **kind)

    def renumbered(self, new_ids: Tensor, num_classes: int) -> StatisticsSum:
        """Return a copy in which class c is class ``new_ids[c]`` of ``num_classes``, the others being absent.

        Parameters
        ----------
        new_ids : Tensor
            (C,) int64 in [0, num_classes); classes of one id are one class, whose sums add up. Targets must differ.
        num_classes : int
            Of the copy.
        """
        old, new = self.summed(), FeatureStatistics.zeros(num_classes, self.feature_dim, gram=False)
        new.class_counts.index_add_(0, new_ids, old.class_counts)
        new.class_sums.index_add_(0, new_ids, old.class_sums)
        targets = None if old.targets is None else old.targets.placed(new_ids, num_classes)
        rows = self.rows() if self.keeps_rows else None
        if rows is not None:
            rows = ClassMeanRows(
                new_ids[rows.class_ids], rows.counts, num_classes=num_classes, class_sums=rows.class_sums
            )
        return self._changed(replace(new, gram=old.gram, targets=targets), rows)

    def _changed(
        self, summed: FeatureStatistics, rows: ClassMeanRows | None, *, gone_rows: int = 0, gone_pairs: int = 0
    ) -> StatisticsSum:
        """Copy the sum with other statistics and rows."""
        return StatisticsSum.resumed(
            summed,
            rows,
            num_rows=self.num_rows - gone_rows,
            num_pairs=self.num_pairs - gone_pairs,
            scatter=self._scatter,
            left_out=self._left_out,
        )

    def add(self, client: ClientStatistics) -> None:
        """Fold one client in.

        Raises
        ------
        ValueError
            If its shapes differ, its counts carry noise, or it lacks the Gram matrix or the factor that the sum has;
            nothing is added then.
        """
        rows, total = client.rows, self._total
        self._made.clear()
        if (rows.num_classes, rows.feature_dim) != tuple(total.class_sums.shape):
            raise ValueError(
                f"statistics to add must have (classes, feature dimension) {tuple(total.class_sums.shape)}, "
                f"got {(rows.num_classes, rows.feature_dim)}"
            )
        if rows.counts.dtype != torch.int64:
            raise ValueError(f"statistics to add must have int64 counts, got {rows.counts.dtype}")
        if self._scatter is not None and client.scatter is None:
            raise ValueError("statistics to add must have a factor of their scatter, got none")
        if client.targets is not None or total.targets is not None:
            before = total.targets if self.num_rows or client.targets is None else client.targets.empty()
            if before is None or client.targets is None:
                raise ValueError("statistics to add must all have targets, or none")
            self._total = total = replace(total, targets=before + client.targets)
        if total.gram is not None:
            client.add_gram_to(total.gram)
        if self._scatter is not None and client.scatter is not None:
            add_to_gram(self._scatter, client.scatter.scaled())
            self._left_out += client.scatter.left_out
        total.class_counts.index_add_(0, rows.class_ids, rows.counts)
        add_to_group_sums(total.class_sums, rows.class_sums, rows.class_ids)
        self.num_rows += len(rows)
        self.num_pairs += len(set(rows.class_ids.tolist()))  # a client has few
        if self.keeps_rows:
            self._parts.append(rows)
            self._unstacked += rows.class_sums.nbytes
            if self._unstacked >= BYTES_PER_PART:
                self._stack(self._num_stacked)
                self._num_stacked, self._unstacked = len(self._parts), 0

    def add_targets(self, targets: TargetSums) -> None:
        """Add sums by target of samples that are in the sum already: targets that it had not."""
        self._made.clear()
        own = self._total.targets
        self._total = replace(self._total, targets=targets if own is None else own + targets)

    @property
    def has_targets(self) -> bool:
        """True if samples have several labels or numbers."""
        return self._total.targets is not None

    @property
    def num_examples(self) -> int:
        """Number of samples N so far."""
        return self._total.num_examples

    def summed(self, *, gram: bool = True) -> FeatureStatistics:
        """Return a copy of the sum so far, without the Gram matrix if it is not needed: copying that takes the time."""
        total = self._total
        matrix = None if total.gram is None or not gram else mirror_upper(total.gram)
        return FeatureStatistics(total.class_counts.clone(), total.class_sums.clone(), matrix, total.targets)

    def shared(self) -> FeatureStatistics:
        """Return the sum so far, copied once for all who only read it."""
        return self.once("sum", self.summed)

    def low_rank(self, rows: ClassMeanRows | None = None) -> LowRankStatistics:
        """Return all rows, by default those kept here, and a copy of the sum of the factors so far.

        Raises
        ------
        ValueError
            If rows are not kept, or clients carry no factors.
        """
        if self._scatter is None:
            raise ValueError("there are no factors of the scatter: this sum was made with scatter=False")
        kept = self.rows() if rows is None else rows
        return LowRankStatistics(kept, mirror_upper(self._scatter), self._left_out)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return the result of ``make``, computed once and kept under a name until more is added to the sum."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def rows(self) -> ClassMeanRows:
        """Return all rows so far, in the order of the clients.

        Raises
        ------
        ValueError
            If rows are not kept.
        """
        if not self.keeps_rows:
            raise ValueError("rows were not kept: this sum was made with keep_rows=False")
        # Stacking once and keeping the result avoids copying all rows again each time a head is solved.
        if len(self._parts) != 1:
            self._stack(0)
            self._num_stacked, self._unstacked = 1, 0
        return self._parts[0]

    def _stack(self, first: int) -> None:
        """Make one part of all from the first on, each freed when it is copied: no more than one is in memory twice."""
        parts, self._parts[first:] = self._parts[first:], []
        dtypes = [part.class_sums.dtype for part in parts] or [torch.float32]
        ids, counts = ([getattr(part, name) for part in parts] for name in ("class_ids", "counts"))
        sums = torch.empty(sum(map(len, parts)), self.feature_dim, dtype=functools.reduce(torch.promote_types, dtypes))
        start, nothing = 0, torch.zeros(0, dtype=torch.int64)
        while parts:
            part = parts.pop(0)
            sums[start : start + len(part)] = part.class_sums
            start += len(part)
            del part
        stacked = ClassMeanRows(
            torch.cat([nothing, *ids]), torch.cat([nothing, *counts]), num_classes=self.num_classes, class_sums=sums
        )
        self._parts.append(stacked)


def sum_without(total: StatisticsSum, *clients: ClientStatistics) -> StatisticsSum:
    """Return a copy of a sum without some of the clients that were folded into it.

    Their rows leave exactly, where rows are kept. Sums, Gram matrix and scatter are within the rounding of the sum.

    Parameters
    ----------
    total : StatisticsSum
        Unchanged.
    *clients : ClientStatistics
        As they were folded, with classes numbered as in the sum.

    Raises
    ------
    ValueError
        If one lacks the Gram matrix or the factor that the sum has, or its rows were not folded.
    """
    summed = total.summed()
    for client in clients:
        rows = client.rows
        if summed.targets is not None and client.targets is not None:
            summed = replace(summed, targets=summed.targets + -client.targets)
        summed.class_counts.index_add_(0, rows.class_ids, -rows.counts)
        add_to_group_sums(summed.class_sums, -rows.class_sums, rows.class_ids)
        # The sum of a class without samples is zero, not a rounding error.
        summed.class_sums[summed.class_counts == 0] = 0.0
        if bool((summed.class_counts < 0).any()):
            raise ValueError("a client to take out must be in the sum, got more samples of a class than the sum has")
        if summed.gram is not None:
            if client.gram is None:
                raise ValueError("a client to take out must have a Gram matrix as the sum has, got none")
            summed.gram.sub_(client.gram)
    gone = [client.rows for client in clients]
    left = total._changed(
        summed,
        _rows_without(total.rows(), gone) if total.keeps_rows else None,
        gone_rows=sum(map(len, gone)),
        gone_pairs=sum(len(torch.unique(rows.class_ids)) for rows in gone),
    )
    if left._scatter is not None:
        left._scatter = mirror_upper(left._scatter)
        for client in clients:
            if client.scatter is None:
                raise ValueError("a client to take out must have a factor of its scatter as the sum has, got none")
            factor = client.scatter.scaled()
            left._scatter -= factor.T @ factor
            left._left_out = max(left._left_out - client.scatter.left_out, 0.0)
    return left


def _rows_without(kept: ClassMeanRows, gone: Iterable[ClassMeanRows]) -> ClassMeanRows:
    """Return rows without, for each of some clients, the first block of them that is the client's."""
    stay = torch.ones(len(kept), dtype=torch.bool)
    for rows in gone:
        if len(rows):
            stay[_block_of(rows, kept, stay)] = False
    return kept if bool(stay.all()) else kept.chosen(stay)


def _block_of(rows: ClassMeanRows, kept: ClassMeanRows, stay: Tensor) -> slice:
    """Find the first block of a client's rows among those that stay."""
    sums = rows.class_sums.to(kept.class_sums.dtype)
    begins = (kept.class_ids == rows.class_ids[0]) & (kept.counts == rows.counts[0]) & stay
    for start in begins.nonzero()[:, 0].tolist():
        block = slice(start, start + len(rows))
        if (
            torch.equal(kept.class_ids[block], rows.class_ids)
            and torch.equal(kept.counts[block], rows.counts)
            and torch.equal(kept.class_sums[block], sums)
        ):
            return block
    raise ValueError("a client to take out must be in the sum, got rows that were not folded")


@dataclass(frozen=True)
class MergedClient:
    """One client in a sum.

    Attributes
    ----------
    digest : str
        :func:`client_digest` of what it sent.
    run : str
        The run in which it was merged.
    client : int
        Its id in that run.
    name : str
        That its owner gave it, by which it is known when its data have changed; "" for none.
    """

    digest: str
    run: str
    client: int
    name: str = ""


@dataclass(frozen=True, eq=False)
class CollectedStatistics:
    """The merged statistics of all clients of one or several runs.

    Attributes
    ----------
    class_names : tuple of str
        C different names, in the order of their ids.
    spec : StatisticsSpec
        What clients were asked for.
    total : StatisticsSum
        Over the clients.
    backbone_fingerprint : str
        Of the backbone that made the features.
    clients : tuple of MergedClient
        In the order in which they were merged.

    Raises
    ------
    ValueError
        If the sum is of other classes or another kind.
    """

    class_names: tuple[str, ...]
    spec: StatisticsSpec
    total: StatisticsSum
    backbone_fingerprint: str
    clients: tuple[MergedClient, ...]

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("class_names must differ, got one twice")
        wanted = _kind(len(self.class_names), gram=self.spec.gram, scatter=self.spec.scatter is not None)
        found = _kind(self.total.num_classes, gram=self.total.has_gram, scatter=self.total.has_scatter)
        if found != wanted:
            raise ValueError(f"a sum must have {wanted}, as class names and specification say, got {found}")

    @property
    def num_examples(self) -> int:
        """Number of samples."""
        return self.total.num_examples

    def with_class_names(self, class_names: Sequence[str]) -> CollectedStatistics:
        """Return a copy whose classes are these, which must include its own; classes are matched by name.

        Raises
        ------
        ValueError
            If one of its classes is not among them.
        """
        position = {name: new for new, name in enumerate(class_names)}
        missing = [name for name in self.class_names if name not in position]
        if missing:
            raise ValueError(
                f"the new class names must include all {len(self.class_names)} old ones, {missing} are not"
            )
        new_ids = torch.tensor([position[name] for name in self.class_names], dtype=torch.int64)
        total = self.total.renumbered(new_ids, len(class_names))
        return replace(self, class_names=tuple(class_names), total=total)


def _kind(num_classes: int, *, gram: bool, scatter: bool) -> str:
    return (
        f"{num_classes} classes, {'a' if gram else 'no'} Gram matrix and {'a' if scatter else 'no'} factor of scatter"
    )
