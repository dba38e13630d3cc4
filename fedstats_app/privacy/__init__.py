"""Rules for what may leave a node: its owner's policy, which a run can tighten.

Apart from Flower, configuration and disk: torch tensors and values in, values or a refusal out. It may import methods
and what stands below them.
"""

from fedstats_app.privacy.evaluation import confusion_above_floor, margins_above_floor, named_samples
from fedstats_app.privacy.node_policy import NodePolicy, says_much_about_samples
from fedstats_app.privacy.suppression import StatisticsAboveFloor, statistics_above_floor
from fedstats_app.training.limits import RefusedByPolicy

__all__ = [
    "NodePolicy",
    "RefusedByPolicy",
    "StatisticsAboveFloor",
    "confusion_above_floor",
    "margins_above_floor",
    "named_samples",
    "says_much_about_samples",
    "statistics_above_floor",
]
