"""A Grid in this process: real ClientApps, pickled messages, faults on demand. No Ray, no sockets, no threads."""

from __future__ import annotations

import itertools
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]
# As large as Flower's: beyond int64.
FIRST_NODE_ID = 2**63 + 1000
# What Flower answers for a function that raised, and the sender it gives errors of the SuperLink itself.
CLIENT_APP_RAISED, NODE_UNAVAILABLE, SUPERLINK_NODE_ID = 2, 5, 1


def begin_run() -> None:
    """Give this process a run: Flower builds no instruction message outside of one."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = SUPERLINK_NODE_ID


def instruction(content: RecordDict, message_type: str = "query.statistics", node: int = FIRST_NODE_ID) -> Message:
    """Return a message as a client receives it."""
    begin_run()
    msg = Message(content, dst_node_id=node, message_type=message_type)
    msg.metadata.__dict__["_message_id"] = f"instruction-{node}"
    return msg


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a node's replies.

    Attributes
    ----------
    raises : str
        The ClientApp is not asked; the runtime reports that it raised this.
    unavailable : bool
        The SuperLink answers for the node, as itself.
    silent : bool
        No reply, ever.
    refused : bool
        The grid does not take the message.
    late : int
        How many times the reply is asked for in vain.
    copies : int
        How often the reply comes.
    tamper : callable, optional
        What the node does to its reply before it sends it.
    """

    raises: str = ""
    unavailable: bool = False
    silent: bool = False
    refused: bool = False
    late: int = 0
    copies: int = 1
    tamper: Callable[[Message], Message] | None = None


HEALTHY = Fault()


@dataclass
class _Pending:
    msg: Message
    asked: int = 0


@dataclass
class LocalGrid(Grid):
    """Runs a ClientApp for each message when its reply is pulled.

    Attributes
    ----------
    app : callable
        A ClientApp, or a handler of one message.
    node_configs : sequence of mapping
        One per node; node ids count from FIRST_NODE_ID.
    run_config : mapping
        The same for all.
    faults : mapping
        From position of the node in ``node_configs`` to what goes wrong there.
    shuffle_seed : int, optional
        Replies come in a random order; by default in that of the messages.
    per_pull : int, optional
        How many replies one pull gives at most: the others are not ready yet.
    nodes_at : callable, optional
        From the number of ``get_node_ids`` calls so far (from 0) to how many nodes are there by then.
    registered : mapping
        From position of the node to the name under which its key is registered.
    drops_refused : bool
        The ids of refused messages are left out (Flower's simulation), or empty (its deployment).
    """

    app: App
    node_configs: Sequence[Mapping[str, Any]]
    run_config: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[int, Fault] = field(default_factory=dict)
    shuffle_seed: int | None = None
    per_pull: int | None = None
    nodes_at: Callable[[int], int] | None = None
    drops_refused: bool = True
    registered: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        begin_run()
        self.contexts = {
            FIRST_NODE_ID + index: Context(7, FIRST_NODE_ID + index, dict(config), RecordDict(), dict(self.run_config))
            for index, config in enumerate(self.node_configs)
        }
        self.pending: dict[str, _Pending] = {}
        # What tests look at: clients asked for and answered, messages by node, and how often nodes were listed.
        self.clients_asked = self.clients_answered = self.node_lists = 0
        self.received: dict[int, list[Message]] = {node: [] for node in self.contexts}
        self._ids, self._order = itertools.count(1), random.Random(self.shuffle_seed or 0)

    def set_run(self, run: object) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        there = len(self.contexts) if self.nodes_at is None else self.nodes_at(self.node_lists)
        self.node_lists += 1
        nodes = list(self.contexts)[:there]
        # Flower's ids are random and its lists are unordered.
        self._order.shuffle(nodes)
        return nodes

    def get_nodes(self) -> list[Any]:
        places = enumerate(self.contexts)
        return [SimpleNamespace(node_id=node, name=self.registered.get(place, "")) for place, node in places]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        asked = list(messages)
        assert asked, "a grid need not take a push of no messages"
        for msg in asked:
            message_id = f"message-{next(self._ids)}"
            msg.metadata.__dict__["_message_id"] = message_id
            node = msg.metadata.dst_node_id
            if node not in self.contexts or self._fault(node).refused:
                ids += [] if self.drops_refused else [""]
                continue
            self.pending[message_id] = _Pending(pickle.loads(pickle.dumps(msg)))  # noqa: S301  # what Ray does
            self.received[node].append(msg)
            self.clients_asked += clients_in(msg)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        wanted = [message_id for message_id in message_ids if message_id in self.pending]
        if self.shuffle_seed is not None:
            self._order.shuffle(wanted)
        given = 0
        for message_id in wanted:
            if self.per_pull is not None and given >= self.per_pull:
                return
            pending = self.pending[message_id]
            fault = self._fault(pending.msg.metadata.dst_node_id)
            pending.asked += 1
            if fault.silent or pending.asked <= fault.late:
                continue
            del self.pending[message_id]
            given += 1
            self.clients_answered += clients_in(pending.msg)
            for _ in range(fault.copies):
                yield self._reply(pending.msg, fault)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting, replies = set(self.push_messages(messages)), []
        deadline = time.monotonic() + (timeout if timeout is not None else 10.0)
        while waiting and time.monotonic() < deadline:
            replies += (new := list(self.pull_messages(waiting)))
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
        return replies

    def _fault(self, node: int) -> Fault:
        return self.faults.get(node - FIRST_NODE_ID, HEALTHY)

    def _reply(self, msg: Message, fault: Fault) -> Message:
        node = msg.metadata.dst_node_id
        if fault.unavailable:
            reply = Message(Error(code=NODE_UNAVAILABLE, reason="Node Unavailable"), reply_to=msg)
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        elif fault.raises:
            reply = Message(Error(code=CLIENT_APP_RAISED, reason=fault.raises), reply_to=msg)
        else:
            try:
                reply = self.app(msg, self.contexts[node])
            except Exception as error:  # noqa: BLE001  # the real runtimes catch as widely
                reply = Message(Error(code=CLIENT_APP_RAISED, reason=f"{type(error)}:<'{error}'>"), reply_to=msg)
        if fault.tamper is not None:
            reply = fault.tamper(reply)
        reply.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
        sent: Message = pickle.loads(pickle.dumps(reply))  # noqa: S301  # what Ray does
        return sent


def clients_in(msg: Message) -> int:
    """Return how many clients a message to a SuperNode is for."""
    record = msg.content.get("clients")
    ids = record["ids"] if isinstance(record, ConfigRecord) else None
    return len(ids) if isinstance(ids, list) else 1
