"""Records <-> values: the requests and replies of the protocol, and the trust boundary.

Every byte from a node is checked here before anything is allocated or used: exact keys, the .npy header before the
data, shapes, dtypes, finiteness, and whether the numbers can be statistics at all. Nothing is ever unpickled.

Somebody else's ClientApp answers our strategies with two calls::

    request = read_statistics_request(msg)
    return statistics_reply(msg, request.statistics(features, labels))
"""

from fedstats_app.wire.errors import RejectedReply, RejectedRequest
from fedstats_app.wire.evaluation import (
    EVALUATE_HEADS,
    evaluation_content,
    evaluation_reply,
    read_evaluation_reply,
    read_evaluation_request,
)
from fedstats_app.wire.guard import guard
from fedstats_app.wire.hosting import QUERY_CLIENTS, NodeInfo, node_info_reply, read_node_info
from fedstats_app.wire.multiplex import per_client
from fedstats_app.wire.statistics_reply import ReceivedStatistics, read_statistics_reply, statistics_reply
from fedstats_app.wire.statistics_request import (
    QUERY_STATISTICS,
    StatisticsRequest,
    read_statistics_request,
)
from fedstats_app.wire.training import (
    EVALUATE_MODEL,
    TRAIN,
    TrainingRequest,
    model_evaluation_reply,
    read_training_task,
    training_reply,
)

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
