"""Waiting, never for ever, for the nodes that a run needs, and learning which clients they host."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.strategies.client_grid import ClientGrid
from fedstats_app.wire import QUERY_CLIENTS, NodeInfo, RejectedReply, read_node_info

logger = logging.getLogger("fedstats_app")

POLL = 0.1


class TooFewClients(RuntimeError):
    """Fewer clients than the run needs came, or answered, in the time allowed."""


def wait_for_nodes(
    grid: Grid,
    minimum: int,
    *,
    expected: int | None = None,
    wait_timeout: float = 120.0,
    settle_seconds: float = 3.0,
) -> list[int]:
    """Wait until enough nodes are there, and return their ids, ascending.

    Enough is ``expected`` nodes where the number is known; else at least ``minimum`` once no new one has come for
    ``settle_seconds``.

    Parameters
    ----------
    grid : Grid
        Any.
    minimum : int
        Fewer are an error.
    expected : int, optional
        How many will come.
    wait_timeout, settle_seconds : float
        In seconds.

    Raises
    ------
    TooFewClients
        If fewer than ``minimum`` came within ``wait_timeout``.
    """
    started = changed = time.monotonic()
    known: set[int] = set()
    while True:
        now, nodes = time.monotonic(), set(grid.get_node_ids())
        if nodes != known:
            known, changed = nodes, now
        enough = len(known) >= (minimum if expected is None else max(expected, 1))
        settled = expected is not None or now - changed >= settle_seconds
        if enough and settled:
            return sorted(known)
        if now - started > wait_timeout:
            if len(known) >= max(minimum, 1):
                logger.warning("going on with %d nodes after %.0f s (wait-timeout)", len(known), wait_timeout)
                return sorted(known)
            raise TooFewClients(
                f"{len(known)} SuperNodes came within {wait_timeout:.0f} s (wait-timeout), "
                f"{max(minimum, 1)} are needed (min-clients)"
            )
        time.sleep(POLL)


@dataclass
class Federation:
    """The clients of a run.

    Attributes
    ----------
    hosts : dict
        From client id to the SuperNode that hosts it.
    simulated : bool
        Whether clients are partitions of the run's data set; else every node is a client with data of its own.
    class_names : tuple of str
        Union of the class names of nodes with data of their own, sorted.
    refused : dict
        From node id to the reason why it takes no part.
    """

    hosts: dict[int, int]
    simulated: bool
    class_names: tuple[str, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)


def discover(
    grid: Grid,
    num_clients: int,
    *,
    min_clients: int,
    wait_timeout: float,
    settle_seconds: float,
    reply_timeout: float,
    progress: Callable[[str], None] = logger.info,
) -> Federation:
    """Wait for SuperNodes and ask each, once, which clients it hosts.

    In a simulation every node reports ``num-partitions``: so many are waited for. Otherwise the run starts with
    ``min_clients`` nodes once no new one has come for ``settle_seconds``.

    Parameters
    ----------
    grid : Grid
        Flower's.
    num_clients : int
        Into how many partitions the data set is split; node p of n hosts the clients p, p + n, p + 2 n, ...
    min_clients, wait_timeout, settle_seconds, reply_timeout
        See run-config.
    progress : callable
        Takes a line for the user.

    Raises
    ------
    TooFewClients
        If not enough came, or answered, in time.
    """
    started = time.monotonic()
    infos: dict[int, NodeInfo] = {}
    refused: dict[int, str] = {}
    expected: int | None = None
    newest = started
    while True:
        new = [node for node in sorted(grid.get_node_ids()) if node not in infos and node not in refused]
        if new:
            newest = time.monotonic()
            left = max(wait_timeout - (newest - started), 1.0)
            _ask(grid, new, infos, refused, min(left, reply_timeout))
            expected = max((info.num_partitions or 0 for info in infos.values()), default=0) or None
        now = time.monotonic()
        if expected is not None and len(infos) >= expected:
            break
        settled = expected is None and len(infos) >= min_clients and now - newest >= settle_seconds
        if settled or now - started > wait_timeout:
            break
        time.sleep(POLL)
    federation = _federation(infos, refused, num_clients)
    needed = min(min_clients, num_clients) if federation.simulated else min_clients
    for node, reason in refused.items():
        progress(f"node {node} takes no part: {reason}")
    if expected is not None and len(infos) < expected:
        progress(f"{len(infos)} of {expected} SuperNodes came within {wait_timeout:.0f} s (wait-timeout)")
    if len(federation.hosts) < max(needed, 1):
        raise TooFewClients(
            f"{len(federation.hosts)} clients on {len(infos)} SuperNodes came within "
            f"{time.monotonic() - started:.0f} s, {max(needed, 1)} are needed (min-clients, wait-timeout)"
        )
    return federation


def _ask(grid: Grid, nodes: list[int], infos: dict[int, NodeInfo], refused: dict[int, str], timeout: float) -> None:
    asking = ClientGrid(grid, reply_timeout=timeout, expected_reply_bytes=1024)
    content = RecordDict()
    messages = [Message(content, dst_node_id=node, message_type=QUERY_CLIENTS) for node in nodes]
    for node, reply in zip(nodes, asking.send_and_receive(messages, timeout=timeout), strict=True):
        try:
            infos[node] = read_node_info(reply)
        except RejectedReply as error:
            refused[node] = str(error)


def _federation(infos: dict[int, NodeInfo], refused: dict[int, str], num_clients: int) -> Federation:
    partitions: dict[int, tuple[int, int]] = {}
    own_data: dict[int, NodeInfo] = {}
    for node, info in sorted(infos.items()):
        if info.partition_id is None or info.num_partitions is None:
            own_data[node] = info
        elif info.partition_id in partitions:
            refused[node] = f"partition-id {info.partition_id} is taken by node {partitions[info.partition_id][0]}"
        else:
            partitions[info.partition_id] = (node, info.num_partitions)
    if partitions and own_data:
        raise ValueError(
            "SuperNodes must all have data of their own (data-path in node-config) or all host partitions, "
            f"got {len(own_data)} with and {len(partitions)} without data-path"
        )
    if own_data:
        names = sorted({name for info in own_data.values() for name in info.class_names})
        return Federation({node: node for node in own_data}, False, tuple(names), refused)
    hosts = {
        client: node
        for partition_id, (node, num_partitions) in partitions.items()
        for client in range(partition_id, num_clients, num_partitions)
    }
    return Federation(hosts, True, (), refused)
