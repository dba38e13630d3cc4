"""A Grid for tests without Ray, servers or waiting: real ClientApps, faults on demand.

It may import grid and Flower.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message, RecordDict

from fedstats_app.grid.in_process import (
    CLIENT_APP_RAISED,
    SERVER_NODE_ID,
    App,
    ObjectGrid,
    begin_task,
    contexts_of,
    copied,
)
from fedstats_app.wire.serving import clients_in

# As large as Flower's: beyond int64.
FIRST_NODE_ID = 2**63 + 1000
RUN_ID = 7
# Flower's error code for a node that is away.
NODE_UNAVAILABLE = 5


@dataclass(frozen=True)
class Fault:
    """A failure of a node's replies.

    Attributes
    ----------
    raises : str
        The ClientApp is not called; the runtime reports that it raised this.
    unavailable : bool
        The SuperLink answers for the node.
    silent : bool
        No reply, ever.
    refused : bool
        The grid does not take the message.
    late : int
        Number of pulls before the reply is ready.
    copies : int
        Number of times that the reply comes.
    tamper : callable, optional
        Applied by the node to its reply before it sends it.

    Examples
    --------
    >>> Fault(silent=True) == HEALTHY
    False
    """

    raises: str = ""
    unavailable: bool = False
    silent: bool = False
    refused: bool = False
    late: int = 0
    copies: int = 1
    tamper: Callable[[Message], Message] | None = None


HEALTHY = Fault()


class LocalGrid(ObjectGrid):
    """Runs a ClientApp for each message when its reply is pulled; a strategy starts on it without Flower.

    Parameters
    ----------
    app : callable
        A ClientApp, or a handler of one message.
    node_configs : sequence of mapping
        One per node; node ids count from FIRST_NODE_ID.
    run_config : mapping
        The same for all.
    faults : mapping
        From position of the node in ``node_configs`` to its fault.
    shuffle_seed : int, optional
        Replies come in a random order; by default in that of the messages.
    per_pull : int, optional
        Most replies of one pull: the others are not ready yet.
    nodes_at : callable, optional
        From the number of ``get_node_ids`` calls so far (from 0) to the number of nodes that are connected by then.
    drops_refused : bool
        The ids of refused messages are left out (Flower's simulation), or empty (its deployment).
    registered : mapping
        From position of the node to the name under which its key is registered.

    Attributes
    ----------
    clients_requested, clients_answered, node_lists : int
        Clients that messages went to, those that answered, and calls of ``get_node_ids``.
    received : dict
        From node id to its messages.

    Examples
    --------
    A strategy's test; `answer` can be your ClientApp.

    >>> import torch
    >>> from fedstats_app.strategies import FedNCM
    >>> from fedstats_app.wire import read_statistics_request, statistics_reply
    >>> def answer(msg, context):
    ...     return statistics_reply(msg, read_statistics_request(msg).statistics(torch.eye(3), torch.arange(3)))
    >>> grid = LocalGrid(answer, [{"site": 0}, {"site": 1}], faults={1: Fault(raises="no disk")})
    >>> strategy = FedNCM(num_classes=3, num_clients=2)
    >>> strategy.start(grid).arrays["weight"].numpy().argmax(axis=1)
    array([0, 1, 2])
    >>> [outcome.reason for outcome in strategy.outcomes]
    ['', 'no disk']
    """

    def __init__(
        self,
        app: App,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        *,
        faults: Mapping[int, Fault] | None = None,
        shuffle_seed: int | None = None,
        per_pull: int | None = None,
        nodes_at: Callable[[int], int] | None = None,
        drops_refused: bool = True,
        registered: Mapping[int, str] | None = None,
    ) -> None:
        begin_task(RUN_ID)
        super().__init__(app, contexts_of(node_configs, RUN_ID, run_config or {}, FIRST_NODE_ID))
        self.faults = {} if faults is None else faults
        self.shuffle_seed, self.per_pull, self.nodes_at = shuffle_seed, per_pull, nodes_at
        self.drops_refused, self.registered = drops_refused, registered or {}
        self.pending: dict[str, Message] = {}
        self.clients_requested = self.clients_answered = self.node_lists = 0
        self.received: dict[int, list[Message]] = {node: [] for node in self.contexts}
        self._pulls: dict[str, int] = {}
        self._order = random.Random(shuffle_seed or 0)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes, in random order as Flower does."""
        number = len(self.contexts) if self.nodes_at is None else self.nodes_at(self.node_lists)
        self.node_lists += 1
        nodes = list(self.contexts)[:number]
        self._order.shuffle(nodes)
        return nodes

    def get_nodes(self) -> list[Any]:
        """Return the nodes with their registered names."""
        places = enumerate(self.contexts)
        return [SimpleNamespace(node_id=node, name=self.registered.get(place, "")) for place, node in places]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages and return their ids.

        Raises
        ------
        ValueError
            Without messages, which a grid need not take.
        """
        messages, ids = list(messages), []
        if not messages:
            raise ValueError("a push must have messages, got none")
        for msg in messages:
            message_id, node = self.give_id(msg), msg.metadata.dst_node_id
            if node not in self.contexts or self._fault(msg).refused:
                ids += [] if self.drops_refused else [""]
                continue
            self.pending[message_id] = copied(msg)
            self.received[node].append(msg)
            self.clients_requested += clients_in(msg)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies that are ready."""
        ready = [message_id for message_id in message_ids if message_id in self.pending]
        if self.shuffle_seed is not None:
            self._order.shuffle(ready)
        number = 0
        for message_id in ready:
            if self.per_pull is not None and number >= self.per_pull:
                return
            fault = self._fault(self.pending[message_id])
            self._pulls[message_id] = self._pulls.get(message_id, 0) + 1
            if fault.silent or self._pulls[message_id] <= fault.late:
                continue
            msg, number = self.pending.pop(message_id), number + 1
            self.clients_answered += clients_in(msg)
            for _ in range(fault.copies):
                yield self._reply(msg, fault)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that come within some seconds, by default 10."""
        waiting, replies = set(self.push_messages(messages)), []
        deadline = time.monotonic() + (timeout if timeout is not None else 10.0)
        while waiting and time.monotonic() < deadline:
            replies += (new := list(self.pull_messages(waiting)))
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
        return replies

    def _fault(self, msg: Message) -> Fault:
        return self.faults.get(msg.metadata.dst_node_id - FIRST_NODE_ID, HEALTHY)

    def _reply(self, msg: Message, fault: Fault) -> Message:
        if fault.unavailable:
            reply = Message(Error(code=NODE_UNAVAILABLE, reason="Node Unavailable"), reply_to=msg)
            reply.metadata.__dict__["_src_node_id"] = SERVER_NODE_ID
        elif fault.raises:
            reply = Message(Error(code=CLIENT_APP_RAISED, reason=fault.raises), reply_to=msg)
        else:
            reply = self.answer(msg)
        if fault.tamper is not None:
            reply = fault.tamper(reply)
        self.give_id(reply)
        return reply


def instruction(content: RecordDict, message_type: str = "query.statistics", node: int = FIRST_NODE_ID) -> Message:
    """Return a message as a node receives it, to call a ClientApp's handler with."""
    begin_task(RUN_ID)
    msg = Message(content, dst_node_id=node, message_type=message_type)
    msg.metadata.__dict__["_message_id"] = f"instruction-{node}"
    return msg
