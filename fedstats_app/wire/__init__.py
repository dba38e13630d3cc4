"""Records <-> values: the requests and replies of the protocol, and the trust boundary.

Every byte from a node is checked here before anything is allocated or used: exact keys, the .npy header before the
data, shapes, dtypes, finiteness, and whether the numbers can be statistics at all. Nothing is ever unpickled.
It may import methods, training and what stands below them.

Somebody else's ClientApp answers our strategies with two calls::

    request = read_statistics_request(msg)
    return statistics_reply(msg, request.statistics(features, labels))
"""

import importlib
from typing import TYPE_CHECKING

from fedstats_app.wire.hosting import QUERY_CLIENTS, NodeInfo, node_info_reply, read_node_info
from fedstats_app.wire.serving import RejectedReply, RejectedRequest, guard, per_client

if TYPE_CHECKING:
    from fedstats_app.training.request import TrainingRequest
    from fedstats_app.wire.evaluation import (
        EVALUATE_HEADS,
        evaluation_content,
        evaluation_reply,
        read_evaluation_reply,
        read_evaluation_request,
    )
    from fedstats_app.wire.statistics_replies import ReceivedStatistics, read_statistics_reply, statistics_reply
    from fedstats_app.wire.statistics_request import (
        QUERY_STATISTICS,
        StatisticsRequest,
        read_statistics_request,
    )
    from fedstats_app.wire.training import (
        EVALUATE_MODEL,
        TRAIN,
        model_evaluation_reply,
        read_training_task,
        training_reply,
    )

# Imported on first use, because they need torch, and a node says which clients it hosts without. None of these names
# may be that of a module of this package: an import of the module would hide it.
_NEED_TORCH = {
    "EVALUATE_HEADS": "evaluation",
    "EVALUATE_MODEL": "training",
    "QUERY_STATISTICS": "statistics_request",
    "TRAIN": "training",
    "ReceivedStatistics": "statistics_replies",
    "StatisticsRequest": "statistics_request",
    "TrainingRequest": "training",
    "evaluation_content": "evaluation",
    "evaluation_reply": "evaluation",
    "model_evaluation_reply": "training",
    "read_evaluation_reply": "evaluation",
    "read_evaluation_request": "evaluation",
    "read_statistics_reply": "statistics_replies",
    "read_statistics_request": "statistics_request",
    "read_training_task": "training",
    "statistics_reply": "statistics_replies",
    "training_reply": "training",
}

__all__ = [
    "EVALUATE_HEADS",
    "EVALUATE_MODEL",
    "QUERY_CLIENTS",
    "QUERY_STATISTICS",
    "TRAIN",
    "NodeInfo",
    "ReceivedStatistics",
    "RejectedReply",
    "RejectedRequest",
    "StatisticsRequest",
    "TrainingRequest",
    "evaluation_content",
    "evaluation_reply",
    "guard",
    "model_evaluation_reply",
    "node_info_reply",
    "per_client",
    "read_evaluation_reply",
    "read_evaluation_request",
    "read_node_info",
    "read_statistics_reply",
    "read_statistics_request",
    "read_training_task",
    "statistics_reply",
    "training_reply",
]


def __getattr__(name: str) -> object:
    """Import one of the names that need torch on first use."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
