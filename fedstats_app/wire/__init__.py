"""Records <-> values: the requests and replies of the protocol, and the trust boundary.

Every byte from a node is checked here before anything is allocated or used: exact keys, the .npy header before the
data, shapes, dtypes, finiteness, and whether the numbers can be statistics at all. Nothing is ever unpickled.
It may import methods, training and what stands below them.

Another ClientApp answers our strategies with two calls::

    request = read_statistics_request(msg)
    return statistics_reply(msg, request.statistics(features, labels))
"""

import importlib
from typing import TYPE_CHECKING

from fedstats_app.wire.reading import RejectedReply, RejectedRequest
from fedstats_app.wire.serving import QUERY_CLIENTS, NodeInfo, guard, node_info_reply, per_client, read_node_info

# Of the messages as docs/protocol.md has them; raised with any change by which one side would misread the other.
PROTOCOL_VERSION = 2

if TYPE_CHECKING:
    from fedstats_app.wire.statistics import QUERY_STATISTICS as QUERY_STATISTICS
    from fedstats_app.wire.statistics import ReceivedStatistics as ReceivedStatistics
    from fedstats_app.wire.statistics import StatisticsRequest as StatisticsRequest
    from fedstats_app.wire.statistics import read_statistics_reply as read_statistics_reply
    from fedstats_app.wire.statistics import read_statistics_request as read_statistics_request
    from fedstats_app.wire.statistics import statistics_reply as statistics_reply
    from fedstats_app.wire.statistics_checks import Limits as Limits

__all__ = [
    "PROTOCOL_VERSION",
    "QUERY_CLIENTS",
    "QUERY_STATISTICS",
    "Limits",
    "NodeInfo",
    "ReceivedStatistics",
    "RejectedReply",
    "RejectedRequest",
    "StatisticsRequest",
    "guard",
    "node_info_reply",
    "per_client",
    "read_node_info",
    "read_statistics_reply",
    "read_statistics_request",
    "statistics_reply",
]


def __getattr__(name: str) -> object:
    """Import on first use what needs torch: a node says which clients it hosts without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.statistics"), name)
