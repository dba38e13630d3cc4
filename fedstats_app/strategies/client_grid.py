"""Clients as nodes: strategies see clients, whatever the number of SuperNodes that host them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.wire.multiplex import pack_requests, unpack_reply

logger = logging.getLogger("fedstats_app")

NO_REPLY_CODE = 101
# Clients in one message to a SuperNode, at most.
CLIENTS_PER_MESSAGE = 10
# Clients asked for ahead of the one whose turn it is, at most, whatever their size.
CLIENTS_PER_WINDOW = 256
FIRST_POLL, LONGEST_POLL = 0.02, 0.5


@dataclass
class _InFlight:
    """One message on its way: which clients of the order it carries, and when it was sent."""

    clients: list[int]
    sent: float


class ClientGrid(Grid):
    """A Grid whose nodes are clients, in a fixed order, over another Grid whose nodes are SuperNodes.

    ``send_and_receive`` packs several clients' requests into one message, keeps a bounded number of replies
    outstanding (in flight or waiting for their turn) and yields replies lazily, in the order of the client ids: what
    folds them in that order gets the same bytes whatever the network does. A client that fails or does not answer
    yields a reply with an error, in its place.

    Parameters
    ----------
    inner : Grid
        Flower's.
    hosts : mapping, optional
        From client id to the id of the SuperNode that hosts it. By default every node of ``inner`` is one client and
        messages pass as they are.
    reply_timeout : float
        Seconds that a request may take per client in it, counted from when it was sent or, since SuperNodes and
        simulated workers take requests one after another, from the last reply of anybody.
    window_bytes : int
        Replies that may be outstanding, in bytes, going by the largest reply seen; at least one client.
    expected_reply_bytes : int
        Size of a reply, for as long as none was seen.
    """

    def __init__(
        self,
        inner: Grid,
        hosts: Mapping[int, int] | None = None,
        *,
        reply_timeout: float = 600.0,
        window_bytes: int = 128 * 2**20,
        expected_reply_bytes: int = 2**20,
    ) -> None:
        if reply_timeout <= 0 or window_bytes <= 0 or expected_reply_bytes <= 0:
            raise ValueError(
                "reply_timeout, window_bytes and expected_reply_bytes must be positive, "
                f"got {reply_timeout}, {window_bytes} and {expected_reply_bytes}"
            )
        self.inner = inner
        self.hosts = None if hosts is None else dict(hosts)
        self.reply_timeout = reply_timeout
        self.window_bytes = window_bytes
        self.reply_bytes = expected_reply_bytes
        self.wire_messages = 0

    def set_run(self, run: object) -> None:
        """Pass on to the inner grid."""
        self.inner.set_run(run)  # type: ignore[arg-type]  # the type of a run is not public

    @property
    def run(self) -> object:  # type: ignore[override]  # the type of a run is not public
        """Return the inner grid's run."""
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message to a client."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all clients, ascending."""
        return sorted(self.inner.get_node_ids() if self.hosts is None else self.hosts)

    def get_nodes(self) -> list[object]:  # type: ignore[override]  # the type of a node's info is not public
        """Return the inner grid's SuperNodes."""
        return list(self.inner.get_nodes())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: replies of several clients share one message, so only ``send_and_receive`` can pair them.

        Raises
        ------
        TypeError
            Unless every node is a client.
        """
        self._require_identity("push_messages")
        return self.inner.push_messages(list(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse, as :meth:`push_messages`.

        Raises
        ------
        TypeError
            Unless every node is a client.
        """
        self._require_identity("pull_messages")
        return self.inner.pull_messages(list(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:  # type: ignore[override]  # a Grid of Flower's returns an Iterable
        """Send messages to clients and yield one reply for each, lazily, in the order of the client ids.

        Parameters
        ----------
        messages : iterable of Message
            At most one per client, with the client's id as destination.
        timeout : float, optional
            Seconds for all together, beside the time limit of each request.
        """
        order = sorted(messages, key=lambda msg: msg.metadata.dst_node_id)
        return _Exchange(self, order, timeout).replies()

    def host(self, client_id: int) -> int:
        """Return the SuperNode that hosts a client."""
        return client_id if self.hosts is None else self.hosts[client_id]

    @property
    def num_hosts(self) -> int:
        """Number of SuperNodes that host clients."""
        return max(1, len(set(self.get_node_ids() if self.hosts is None else self.hosts.values())))

    def _require_identity(self, what: str) -> None:
        if self.hosts is not None:
            raise TypeError(f"{what} needs one client per SuperNode; use send_and_receive")


@dataclass
class _Exchange:
    """One call of ``send_and_receive``."""

    grid: ClientGrid
    order: list[Message]
    timeout: float | None
    turn: int = 0
    unsent: list[int] = field(default_factory=list)
    in_flight: dict[str, _InFlight] = field(default_factory=dict)
    ready: dict[int, Message] = field(default_factory=dict)
    last_reply: float = field(default_factory=time.monotonic)

    def replies(self) -> Iterator[Message]:
        started, poll = time.monotonic(), FIRST_POLL
        self.unsent = list(range(len(self.order)))
        group_limit = self._group_limit()
        while self.turn < len(self.order):
            self._send(group_limit)
            progressed = self._receive()
            self._expire(started)
            while self.turn in self.ready:
                reply = self.ready.pop(self.turn)
                self.turn += 1
                yield reply
                del reply  # the consumer is done with it: do not hold a Gram matrix while waiting for the next
                progressed = True
            poll = FIRST_POLL if progressed else min(1.5 * poll, LONGEST_POLL)
            if not progressed:
                time.sleep(poll)

    def _group_limit(self) -> int:
        """Return how many clients one message carries: few enough that every host has work ahead of it."""
        return max(1, min(CLIENTS_PER_MESSAGE, math.ceil(self._window() / (4 * self.grid.num_hosts))))

    def _window(self) -> int:
        return max(1, min(CLIENTS_PER_WINDOW, self.grid.window_bytes // self.grid.reply_bytes))

    def _send(self, group_limit: int) -> None:
        """Send requests of the clients that fit the window, in the order of the clients, grouped by host."""
        end = min(self.turn + self._window(), len(self.order))
        sendable = [index for index in self.unsent if index < end]
        # One slot becomes free with every reply; waiting for a few keeps messages from carrying one client each.
        if not sendable or (self.in_flight and end < len(self.order) and len(sendable) < group_limit):
            return
        groups: dict[tuple[int, str, int], list[list[int]]] = {}
        for index in sendable:
            msg = self.order[index]
            key = (self.grid.host(msg.metadata.dst_node_id), msg.metadata.message_type, id(msg.content))
            batches = groups.setdefault(key, [[]])
            if len(batches[-1]) >= (group_limit if self.grid.hosts is not None else 1):
                batches.append([])
            batches[-1].append(index)
        sent = set(sendable)
        self.unsent = [index for index in self.unsent if index not in sent]
        batches = sorted(batch for of_host in groups.values() for batch in of_host)
        wire = [self._wire_message(batch) for batch in batches]
        ids = list(self.grid.inner.push_messages(wire))
        self.grid.wire_messages += len(wire)
        if len(ids) != len(wire):
            raise RuntimeError(f"the grid must accept every message, took {len(ids)} of {len(wire)}")
        for message_id, batch in zip(ids, batches, strict=True):
            if message_id:
                self.in_flight[message_id] = _InFlight(batch, time.monotonic())
            else:
                self._fail(batch, "the message could not be sent: no such node")

    def _wire_message(self, batch: list[int]) -> Message:
        first = self.order[batch[0]]
        if self.grid.hosts is None:
            content, node = first.content, first.metadata.dst_node_id
        else:
            clients = [self.order[index].metadata.dst_node_id for index in batch]
            content, node = pack_requests(first.content, clients), self.grid.host(clients[0])
        return Message(
            content, dst_node_id=node, message_type=first.metadata.message_type, group_id=first.metadata.group_id
        )

    def _receive(self) -> bool:
        received = False
        for reply in self.grid.inner.pull_messages(list(self.in_flight)):
            request = self.in_flight.pop(reply.metadata.reply_to_message_id, None)
            if request is None:
                continue
            received, self.last_reply = True, time.monotonic()
            if reply.has_content():
                self.grid.reply_bytes = max(
                    1024, _array_bytes(reply.content) // len(request.clients), self._largest_seen()
                )
            for index in request.clients:
                instruction = self.order[index]
                if reply.has_content() and self.grid.hosts is None:
                    self.ready[index] = reply
                else:
                    self.ready[index] = unpack_reply(reply, instruction.metadata.dst_node_id, instruction)
        return received

    def _largest_seen(self) -> int:
        """Return the grid's estimate, unless it is still the one it was given before any reply."""
        return self.grid.reply_bytes if self.turn or self.ready else 0

    def _expire(self, started: float) -> None:
        """Give up on requests that took too long, and on all when the time for the whole exchange is over."""
        now = time.monotonic()
        for message_id, request in list(self.in_flight.items()):
            waited = now - max(request.sent, self.last_reply)
            allowed = self.grid.reply_timeout * len(request.clients)
            if waited > allowed:
                del self.in_flight[message_id]
                self._fail(request.clients, f"no reply within {allowed:.0f} s (reply-timeout)")
        if self.timeout is not None and now - started > self.timeout:
            for request in self.in_flight.values():
                self._fail(request.clients, f"no reply when the {self.timeout:.0f} s for all clients were over")
            self._fail(self.unsent, f"not asked before the {self.timeout:.0f} s for all clients were over")
            self.in_flight, self.unsent = {}, []

    def _fail(self, batch: list[int], reason: str) -> None:
        for index in batch:
            instruction = self.order[index]
            self.ready[index] = Message(Error(code=NO_REPLY_CODE, reason=reason), reply_to=instruction)


def _array_bytes(content: RecordDict) -> int:
    return sum(
        len(array.data)
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )
