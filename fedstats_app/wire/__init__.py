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

# Of the messages as docs/protocol.md has them; raised with any change by which one side would misread the other.
PROTOCOL_VERSION = 1

if TYPE_CHECKING:
    from fedstats_app.training.model import TrainingRequest as TrainingRequest
    from fedstats_app.wire.evaluation import EVALUATE_HEADS as EVALUATE_HEADS
    from fedstats_app.wire.evaluation import evaluation_content as evaluation_content
    from fedstats_app.wire.evaluation import evaluation_reply as evaluation_reply
    from fedstats_app.wire.evaluation import read_evaluation_reply as read_evaluation_reply
    from fedstats_app.wire.evaluation import read_evaluation_request as read_evaluation_request
    from fedstats_app.wire.statistics_checks import Limits as Limits
    from fedstats_app.wire.statistics_replies import ReceivedStatistics as ReceivedStatistics
    from fedstats_app.wire.statistics_replies import read_statistics_reply as read_statistics_reply
    from fedstats_app.wire.statistics_replies import statistics_reply as statistics_reply
    from fedstats_app.wire.statistics_request import QUERY_STATISTICS as QUERY_STATISTICS
    from fedstats_app.wire.statistics_request import StatisticsRequest as StatisticsRequest
    from fedstats_app.wire.statistics_request import read_statistics_request as read_statistics_request
    from fedstats_app.wire.training import EVALUATE_MODEL as EVALUATE_MODEL
    from fedstats_app.wire.training import TRAIN as TRAIN
    from fedstats_app.wire.training import model_evaluation_reply as model_evaluation_reply
    from fedstats_app.wire.training import read_training_task as read_training_task
    from fedstats_app.wire.training import training_reply as training_reply

# Imported on first use, because they need torch, and a node says which clients it hosts without. None of these names
# may be that of a module of this package: an import of the module would hide it.
_IN_MODULE = {
    "evaluation": "EVALUATE_HEADS evaluation_content evaluation_reply read_evaluation_reply read_evaluation_request",
    "statistics_checks": "Limits",
    "statistics_replies": "ReceivedStatistics read_statistics_reply statistics_reply",
    "statistics_request": "QUERY_STATISTICS StatisticsRequest read_statistics_request",
    "training": "EVALUATE_MODEL TRAIN TrainingRequest model_evaluation_reply read_training_task training_reply",
}
_NEED_TORCH = {name: module for module, names in _IN_MODULE.items() for name in names.split()}
__all__ = [
    "PROTOCOL_VERSION",
    "QUERY_CLIENTS",
    "NodeInfo",
    "RejectedReply",
    "RejectedRequest",
    "guard",
    "node_info_reply",
    "per_client",
    "read_node_info",
    *_NEED_TORCH,
]


def __getattr__(name: str) -> object:
    """Import one of the names that need torch on first use."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
