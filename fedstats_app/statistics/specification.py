"""Statistics that a method needs, and the one specification that serves several methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.statistics.accumulation import ArrayLike, as_tensor
from fedstats_app.statistics.client_statistics import ClientStatistics, StatisticsAccumulator
from fedstats_app.statistics.exact import LEAST_BITS, MOST_BITS
from fedstats_app.statistics.factors import HEADER_BYTES, ScatterSpec, num_factor_numbers

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_CLASSES = 1_000_000


@dataclass(frozen=True)
class SampleRequest:
    """Fields of every request about a client's samples.

    Attributes
    ----------
    num_classes : int
        C.
    seed : int
        Draws which samples are held out, and whatever else the request draws.
    holdout : float
        Share of its samples that a client keeps for evaluation, 0 for none.
    backbone_fingerprint : str
        Of the server's backbone and transform, or "" if there is none to compare with.
    class_names : tuple of str
        The classes in the order of their ids, or empty where ids are agreed on otherwise.
    """

    num_classes: int
    seed: int = field(default=0, kw_only=True)
    holdout: float = field(default=0.0, kw_only=True)
    # Flower's message_size_mod takes no empty text and no empty list.
    backbone_fingerprint: str = field(default="", kw_only=True, metadata={"optional": True})
    class_names: tuple[str, ...] = field(default=(), kw_only=True, metadata={"optional": True})

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(f"num_classes must lie in [1, {MAX_CLASSES}], got {self.num_classes}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if not 0.0 <= self.holdout < 1.0:
            raise ValueError(f"holdout must lie in [0, 1), got {self.holdout}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must name all {self.num_classes} classes, got {len(self.class_names)}")


# No mean is of one sample where more are there.
LEAST_PER_MEAN = 2


@dataclass(frozen=True)
class StatisticsSpec:
    """Statistics that clients send.

    Attributes
    ----------
    gram : bool
        Whether the Gram matrix is needed.
    means_per_class : int
        Disjoint means per class and client, at least 1.
    samples_per_mean : int
        Fewer samples than this, at least 2, share one of several means only where their class has no more.
    fraction_bits : int or None
        Fractional bits that features are rounded to, so that sums are exact; None if they are not rounded.
    scatter : ScatterSpec or None
        Which factor of each client's scatter is needed. Where the Gram matrix is needed too, clients send that alone,
        and the server makes the factor of it.
    targets : {"", "labels", "numbers"}
        What the classes name if not one class a sample: several labels, or numbers.

    Examples
    --------
    >>> StatisticsSpec(gram=True).from_features(torch.eye(4), torch.tensor([0, 0, 1, 1]), num_classes=2)
    <ClientStatistics of 4 samples: 2 rows, 4 features, with Gram matrix>
    """

    gram: bool = False
    means_per_class: int = 1
    scatter: ScatterSpec | None = None
    samples_per_mean: int = LEAST_PER_MEAN
    fraction_bits: int | None = None
    targets: str = ""

    def __post_init__(self) -> None:
        if self.fraction_bits is not None and not LEAST_BITS <= self.fraction_bits <= MOST_BITS:
            raise ValueError(f"fraction_bits must lie in [{LEAST_BITS}, {MOST_BITS}], got {self.fraction_bits}")
        if self.samples_per_mean < LEAST_PER_MEAN:
            raise ValueError(f"samples_per_mean must be at least {LEAST_PER_MEAN}, got {self.samples_per_mean}")
        if self.targets not in ("", "labels", "numbers"):
            raise ValueError(f"targets must be labels or numbers, got {self.targets!r:.40}")
        if self.means_per_class < 1:
            raise ValueError(f"means_per_class must be at least 1, got {self.means_per_class}")

    @property
    def sends_scatter(self) -> bool:
        """True if clients send a factor of their scatter."""
        return self.scatter is not None and not self.gram

    @property
    def stand_in(self) -> ScatterSpec:
        """Specification of a client with too few samples for a Gram matrix."""
        return self.scatter or ScatterSpec(RankRule("root", 1.0))

    def to_dict(self) -> dict[str, object]:
        """Return plain values from which :meth:`from_dict` makes the specification again."""
        values: dict[str, object] = {"gram": self.gram, "means-per-class": self.means_per_class}
        if self.samples_per_mean != LEAST_PER_MEAN:
            values["samples-per-mean"] = self.samples_per_mean
        if self.fraction_bits is not None:
            values["fraction-bits"] = self.fraction_bits
        if self.targets:
            values["targets"] = self.targets
        if self.scatter is None:
            return values
        return {**values, "scatter": {"rank": str(self.scatter.rank), "dtype": self.scatter.dtype}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StatisticsSpec:
        """Make a specification from what :meth:`to_dict` returned, on another machine perhaps.

        Raises
        ------
        KeyError
            If a value is missing.
        TypeError, ValueError
            If a value is not of exactly its type, or not allowed.
        """
        if not isinstance(values, dict):
            raise TypeError("must be an object")
        for key, kind in (("gram", bool), ("means-per-class", int)):
            _check_type(values, key, kind)
        scatter = None
        if "scatter" in values:
            _check_type(values, "scatter", dict)
            for key in ("rank", "dtype"):
                _check_type(values["scatter"], key, str)
            scatter = ScatterSpec(RankRule.parse(values["scatter"]["rank"]), values["scatter"]["dtype"])
        samples = {"samples-per-mean": LEAST_PER_MEAN, **values}
        _check_type(samples, "samples-per-mean", int)
        if "fraction-bits" in values:
            _check_type(values, "fraction-bits", int)
        bits = values.get("fraction-bits")
        targets = values.get("targets", "")
        return cls(values["gram"], values["means-per-class"], scatter, samples["samples-per-mean"], bits, targets)

    def covers(self, other: StatisticsSpec) -> bool:
        """Return whether statistics of this kind serve a method that asks for ``other``."""
        return (
            (self.gram or not other.gram)
            and other.scatter in (None, self.scatter)
            and (self._means == other._means or other.means_per_class == 1)
        )

    @property
    def _means(self) -> tuple[int, int]:
        return self.means_per_class, self.samples_per_mean

    def num_bytes(self, num_samples: int, num_classes: int, dim: int, number_bytes: int) -> int:
        """Count the bytes that a client sends at most: rows with class id and count, what goes with them, and arrays.

        Parameters
        ----------
        num_samples, num_classes : int
            What the client has.
        dim : int
            d.
        number_bytes : int
            Of a number in the run's wire-dtype, below 4 with a scale per row; class ids and counts take 8 each.
        """
        num_rows = num_classes * self.means_per_class
        if self.targets:
            whole = replace(self, targets="").num_bytes(num_samples, 1, dim, number_bytes)
            return whole + num_classes * (32 + 2 * dim * max(number_bytes, 4)) + 6 * HEADER_BYTES
        scale, header = (4, HEADER_BYTES) if number_bytes < 4 else (0, 0)
        rows = num_rows * (16 + number_bytes * dim + scale) + 3 * HEADER_BYTES + header
        full_rank = min(max(num_samples - num_rows, 0), dim)
        if self.gram:
            # In int8 the rounding of each row's sum is sent with the scatter.
            rank = min(num_samples, dim) if number_bytes == 1 or num_samples >= dim else full_rank
            return rows + number_bytes * num_factor_numbers(rank, dim) + HEADER_BYTES + rank * scale + header
        if self.scatter is None:
            return rows
        of_rank = self.scatter.num_bytes
        rank = self.scatter.rank.rank(num_samples, full_rank, lambda rank: rows + of_rank(rank, dim))
        return rows + of_rank(rank, dim)

    def accumulator(
        self,
        labels: Tensor,
        num_classes: int,
        feature_dim: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        min_samples_per_mean: int = LEAST_PER_MEAN,
        rows: tuple[Tensor, Tensor] | None = None,
        targets: Tensor | None = None,
    ) -> StatisticsAccumulator:
        """Return an accumulator for a client's labels (n,) and features of dimension d.

        ``rows`` says which samples share a mean, if that is not to be drawn; ``targets`` are (n, C), if there are any.
        """
        return StatisticsAccumulator(
            labels,
            num_classes,
            feature_dim,
            gram=self.gram,
            scatter=self.scatter.rank if self.scatter is not None and self.sends_scatter else None,
            means_per_class=self.means_per_class,
            min_samples_per_mean=max(min_samples_per_mean, self.samples_per_mean),
            generator=torch.Generator().manual_seed(seed),
            device=device,
            planned=rows,
            fraction_bits=self.fraction_bits,
            targets=None if targets is None else (self.targets, targets),
        )

    def from_features(
        self, features: ArrayLike, labels: ArrayLike, num_classes: int, *, seed: int = 0
    ) -> ClientStatistics:
        """Return the statistics of (n, d) features, tensor or ndarray, at once.

        Raises
        ------
        ValueError
            If shapes disagree, a label is out of range, or a feature is not finite.
        """
        features, labels = as_tensor(features), as_tensor(labels)
        accumulator = self.accumulator(labels, num_classes, features.shape[1], seed=seed, device=features.device)
        accumulator.update(features)
        return accumulator.statistics()


def merge_specs(specs: Iterable[StatisticsSpec]) -> StatisticsSpec:
    """Return the least specification that covers all, at least one.

    Raises
    ------
    ValueError
        If two ask for different factors, or different numbers (above 1) of means per class.
    """
    wanted = list(dict.fromkeys(specs))
    several = [spec for spec in wanted if spec.means_per_class > 1]
    if len(numbers := {spec.means_per_class for spec in several}) > 1:
        raise ValueError(f"one pass serves one number of means per class, got {sorted(numbers)}")
    if len(numbers := {spec.samples_per_mean for spec in several}) > 1:
        raise ValueError(f"one pass serves one number of samples per mean, got {sorted(numbers)}")
    factors = list(dict.fromkeys(spec.scatter for spec in wanted if spec.scatter is not None))
    if len(factors) > 1:
        raise ValueError(f"one pass serves one factor of the scatter, got {factors[0]} and {factors[1]}")
    return StatisticsSpec(
        gram=any(spec.gram for spec in wanted),
        means_per_class=max(spec.means_per_class for spec in wanted),
        scatter=factors[0] if factors else None,
        samples_per_mean=max(spec.samples_per_mean for spec in wanted),
    )


def _check_type(values: Mapping[str, Any], key: str, kind: type) -> None:
    if type(values[key]) is not kind:
        raise TypeError(f"{key} must be of type {kind.__name__}, got {values[key]!r:.60}")
