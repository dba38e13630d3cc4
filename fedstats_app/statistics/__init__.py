"""Level 0: what a client sends, as values that can be added (torch only).

The law that everything else rests on: ``statistics(A u B) == statistics(A) + statistics(B)``, with an identity
(``zeros``), whatever the order and the split. Counts are int64, sums and Gram matrices float64.

It may import torch, numpy and of the package the rule for ranks.
"""

from fedstats_app.statistics.class_mean_rows import ClassMeanRows
from fedstats_app.statistics.client_statistics import ClientStatistics, StatisticsAccumulator
from fedstats_app.statistics.collected import CollectedStatistics, MergedClient, StatisticsSum, client_digest
from fedstats_app.statistics.factors import GramFactor, LowRankStatistics, ScatterFactor, ScatterSpec
from fedstats_app.statistics.feature_maps import (
    FeatureMap,
    IdentityMap,
    RandomFourierFeatures,
    RandomProjection,
    UnitLength,
    feature_map_from_dict,
)
from fedstats_app.statistics.feature_statistics import FeatureStatistics
from fedstats_app.statistics.specification import StatisticsSpec, merge_specs

__all__ = [
    "ClassMeanRows",
    "ClientStatistics",
    "CollectedStatistics",
    "FeatureMap",
    "FeatureStatistics",
    "GramFactor",
    "IdentityMap",
    "LowRankStatistics",
    "MergedClient",
    "RandomFourierFeatures",
    "RandomProjection",
    "ScatterFactor",
    "ScatterSpec",
    "StatisticsAccumulator",
    "StatisticsSpec",
    "StatisticsSum",
    "UnitLength",
    "client_digest",
    "feature_map_from_dict",
    "merge_specs",
]
