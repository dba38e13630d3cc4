"""What a method asks clients for, and how the wishes of several methods become one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedstats_app.statistics.client_statistics import ClientStatistics, StatisticsAccumulator
from fedstats_app.statistics.feature_maps import FeatureMap, IdentityMap, feature_map_from_dict
from fedstats_app.statistics.gram_factor import num_factor_numbers


class ClientSize(NamedTuple):
    """What the size of a client's reply depends on: its number of samples, and of classes that it has."""

    num_samples: int
    num_classes: int


@dataclass(frozen=True)
class StatisticsSpec:
    """Which statistics of which features.

    Attributes
    ----------
    gram : bool
        Whether the Gram matrix is needed.
    means_per_class : int
        Disjoint means per class and client, at least 1.
    feature_map : FeatureMap
        Applied to the backbone's features first.
    """

    gram: bool = False
    means_per_class: int = 1
    feature_map: FeatureMap = field(default_factory=IdentityMap)

    def __post_init__(self) -> None:
        if self.means_per_class < 1:
            raise ValueError(f"means_per_class must be at least 1, got {self.means_per_class}")

    def to_dict(self) -> dict[str, object]:
        """Return plain values from which :meth:`from_dict` makes the specification again."""
        return {"gram": self.gram, "means-per-class": self.means_per_class, "feature-map": self.feature_map.to_dict()}

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
        for key, kind in (("gram", bool), ("means-per-class", int), ("feature-map", dict)):
            if type(values[key]) is not kind:
                raise TypeError(f"{key} must be of type {kind.__name__}, got {values[key]!r:.60}")
        return cls(values["gram"], values["means-per-class"], feature_map_from_dict(values["feature-map"]))

    def covers(self, other: StatisticsSpec) -> bool:
        """Return whether statistics of this kind serve a method that asks for ``other``."""
        return (
            self.feature_map == other.feature_map
            and (self.gram or not other.gram)
            and (self.means_per_class == other.means_per_class or other.means_per_class == 1)
        )

    def num_bytes(self, clients: Iterable[ClientSize], feature_dim: int, number_bytes: int) -> int:
        """Return what clients send at most, without headers: rows with class id and count, and Gram matrices.

        Parameters
        ----------
        clients : iterable of ClientSize
            Their samples and classes.
        feature_dim : int
            d of the backbone.
        number_bytes : int
            Of a number in the run's wire-dtype; class ids and counts take 8 each.
        """
        dim = self.feature_map.output_dim(feature_dim)
        rows = numbers = 0
        for client in clients:
            rows += client.num_classes * self.means_per_class
            if self.gram:
                numbers += num_factor_numbers(min(client.num_samples, dim), dim)
        return rows * (16 + number_bytes * dim) + number_bytes * numbers

    def accumulator(
        self,
        labels: Tensor,
        num_classes: int,
        feature_dim: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        min_samples_per_mean: int = 2,
    ) -> StatisticsAccumulator:
        """Return an accumulator for a client's labels (n,) and backbone features of dimension d."""
        return StatisticsAccumulator(
            labels,
            num_classes,
            self.feature_map.output_dim(feature_dim),
            gram=self.gram,
            means_per_class=self.means_per_class,
            min_samples_per_mean=min_samples_per_mean,
            generator=torch.Generator().manual_seed(seed),
            device=device,
        )

    def from_features(self, features: Tensor, labels: Tensor, num_classes: int, *, seed: int = 0) -> ClientStatistics:
        """Return the statistics of (n, d) backbone features at once.

        Raises
        ------
        ValueError
            If shapes disagree, a label is out of range, or a feature is not finite.
        """
        accumulator = self.accumulator(labels, num_classes, features.shape[1], seed=seed, device=features.device)
        accumulator.update(self.feature_map(features))
        return accumulator.statistics()


def merge_specs(specs: Iterable[StatisticsSpec]) -> tuple[StatisticsSpec, ...]:
    """Return the fewest specifications that cover all: one per feature map, in order of first appearance.

    Raises
    ------
    ValueError
        If two ask for different numbers (above 1) of means per class of the same features.
    """
    merged: dict[FeatureMap, StatisticsSpec] = {}
    for spec in specs:
        known = merged.setdefault(spec.feature_map, spec)
        several = {known.means_per_class, spec.means_per_class} - {1}
        if len(several) > 1:
            raise ValueError(f"one pass serves one number of means per class, got {sorted(several)}")
        merged[spec.feature_map] = replace(
            known, gram=known.gram or spec.gram, means_per_class=max(known.means_per_class, spec.means_per_class)
        )
    return tuple(merged.values())
