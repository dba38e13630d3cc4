"""Level 0: what a client sends, as values that can be added (torch only).

The law that everything else rests on: ``statistics(A u B) == statistics(A) + statistics(B)``, with an identity
(``zeros``), whatever the order and the split. Counts are int64, sums and Gram matrices float64.

The server's sums are in :mod:`fedstats_app.statistics.collected`. It may import torch, numpy and base.
"""

from fedstats_app.statistics.class_mean_rows import ClassMeanRows as ClassMeanRows
from fedstats_app.statistics.client_statistics import ClientStatistics as ClientStatistics
from fedstats_app.statistics.client_statistics import StatisticsAccumulator as StatisticsAccumulator
from fedstats_app.statistics.client_statistics import client_digest as client_digest
from fedstats_app.statistics.factors import LowRankStatistics as LowRankStatistics
from fedstats_app.statistics.factors import ScatterFactor as ScatterFactor
from fedstats_app.statistics.factors import ScatterSpec as ScatterSpec
from fedstats_app.statistics.factors import TriangularFactor as TriangularFactor
from fedstats_app.statistics.feature_statistics import FeatureStatistics as FeatureStatistics
from fedstats_app.statistics.specification import StatisticsSpec as StatisticsSpec
from fedstats_app.statistics.specification import merge_specs as merge_specs
from fedstats_app.statistics.target_sums import TargetSums as TargetSums
