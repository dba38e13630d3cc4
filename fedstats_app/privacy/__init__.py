"""What may leave a node: its owner's policy, which a server can tighten and never loosen.

Apart from Flower, configuration and disk: torch tensors and values in, values or a refusal out.
"""

from fedstats_app.privacy.evaluation import confusion_above_floor
from fedstats_app.privacy.node_policy import NodePolicy, RefusedByPolicy, says_much_about_samples
from fedstats_app.privacy.suppression import StatisticsAboveFloor, statistics_above_floor

__all__ = [
    "NodePolicy",
    "RefusedByPolicy",
    "StatisticsAboveFloor",
    "confusion_above_floor",
    "says_much_about_samples",
    "statistics_above_floor",
]
