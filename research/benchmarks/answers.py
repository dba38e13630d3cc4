"""Clients that answer a strategy in this process, through the app's own requests, replies and grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.testing import LocalGrid
from fedstats_app.wire import per_client


def ask(
    strategy: StatisticsStrategy,
    answer: Callable[[Message, int], Message],
    num_clients: int,
    *,
    hosts: int = 1,
    **how: Any,
) -> None:
    """Run a strategy over clients that are spread over nodes.

    Parameters
    ----------
    strategy : StatisticsStrategy
        Asks.
    answer : callable
        From a request and a client's number, from 0, to its reply.
    num_clients, hosts : int
        How many clients and nodes.
    **how
        As :class:`fedstats_app.testing.LocalGrid`.
    """

    @per_client
    def app(msg: Message, context: Context, client_id: int | None) -> Message:
        return answer(msg, client_id or 0)

    inner = LocalGrid(app, [{}] * hosts, **how)
    nodes = sorted(inner.get_node_ids())
    clients = {client: nodes[client % hosts] for client in range(num_clients)}
    strategy.start(ClientGrid(inner, clients, expected_reply_bytes=strategy.expected_reply_bytes))
