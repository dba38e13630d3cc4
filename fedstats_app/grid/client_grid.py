"""Clients as nodes: strategies see clients, whatever the number of SuperNodes that host them."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.base.progress import Progress, Step
from fedstats_app.grid.asking import array_bytes
from fedstats_app.wire.serving import pack_requests, unpack_reply

NO_REPLY_CODE = 101
# Errors that no site sent: ours, and those that Flower's SuperLink answers in the place of a node (message or reply
# unavailable, node unavailable).
SERVER_SIDE_CODES = frozenset({NO_REPLY_CODE, 3, 4, 5})
# Clients in one message to a SuperNode, at most.
CLIENTS_PER_MESSAGE = 10
# Clients asked for ahead of the one whose turn it is, at most, however small their replies are.
CLIENTS_PER_WINDOW = 2048
FIRST_POLL, LONGEST_POLL = 0.02, 0.5
# Replies whose sizes are remembered, and the share of them that the estimate covers: the few largest do not count, so
# that one node cannot make the window, and with it the run, as slow as it likes by sending large replies.
SIZES_REMEMBERED, SHARE_COVERED = 128, 0.9


def next_poll(poll: float, *, progressed: bool) -> float:
    """Return how many seconds to wait before asking Flower again: a question costs a SuperLink milliseconds."""
    return FIRST_POLL if progressed else min(1.5 * poll, LONGEST_POLL)


class Silences:
    """Remembers from round to round who did not answer in time.

    A client that timed out is asked again after 2 rounds, then after 4, 8 and so on: all in all it costs as many time
    limits as its absence has digits in base 2, and it misses at most about as many rounds again as it was silent for.
    An answer, also one that is an error, ends that. Outside of rounds no client is left out.
    """

    def __init__(self) -> None:
        self._round = 0
        self._times: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def next_round(self) -> None:
        """Begin a round."""
        self._round += 1

    @contextmanager
    def forgotten_afterwards(self) -> Iterator[None]:
        """Go through rounds; after them it is forgotten who was silent."""
        try:
            yield
        finally:
            self._round = 0
            self._times.clear()
            self._until.clear()

    def rests(self, client: int) -> bool:
        """Return whether a client is not to be asked now."""
        return self._round < self._until.get(client, 0)

    def reason(self, client: int) -> str:
        """Return in words why a client is not asked."""
        times, left = self._times[client], self._until[client] - self._round
        return f"not asked: it let {times} request(s) time out, and is asked again in {left} round(s)"

    def wake(self, clients: Iterable[int]) -> None:
        """Ask clients in any case, because the others would be too few."""
        for client in clients:
            self._until.pop(client, None)

    def note_timeout(self, client: int) -> None:
        """Note that a client's time ran out."""
        if self._round:
            self._times[client] = self._times.get(client, 0) + 1
            self._until[client] = self._round + 2 ** self._times[client]

    def note_answer(self, client: int) -> None:
        """Note that a client answered."""
        self._times.pop(client, None)
        self._until.pop(client, None)


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Push messages and return one id for each, None for a message that was refused.

    Flower's deployment has an empty entry for a refused message; its simulation leaves the entry out, but both note
    the id in the message itself.
    """
    if not messages:  # whether a grid takes a push of nothing is not for us to rely on
        return []
    ids = list(grid.push_messages(messages))
    if len(ids) == len(messages):
        return [message_id or None for message_id in ids]
    accepted = set(ids)
    own = [message.metadata.message_id for message in messages]
    return [message_id if message_id in accepted else None for message_id in own]


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
        simulated workers take requests one after another, from the last reply of any client.
    window_bytes : int
        Replies that may be outstanding, in bytes, going by the larger ones of the latest replies; at least one client.
    expected_reply_bytes : int
        Size of a reply, for as long as none was seen.

    Attributes
    ----------
    silences : Silences
        Which clients are not asked for some rounds.
    progress : Progress
        Whose steps say how many clients have answered.

    Examples
    --------
    >>> from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
    >>> nodes = LocalGrid(lambda msg, context: msg, [{}, {}])
    >>> ClientGrid(nodes, {client: FIRST_NODE_ID + client % 2 for client in range(5)}).get_node_ids()
    [0, 1, 2, 3, 4]
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
        self.inner, self.hosts = inner, None if hosts is None else dict(hosts)
        self.reply_timeout, self.window_bytes, self.reply_bytes = reply_timeout, window_bytes, expected_reply_bytes
        # Called with every reply before it is used, to record what left each client.
        self.on_reply: Callable[[Message], None] | None = None
        self.silences = Silences()
        self.progress = Progress()
        self._sizes: deque[int] = deque(maxlen=SIZES_REMEMBERED)

    def host(self, client_id: int) -> int:
        """Return the SuperNode that hosts a client."""
        return client_id if self.hosts is None else self.hosts[client_id]

    @property
    def num_hosts(self) -> int:
        """Number of SuperNodes that host clients."""
        return max(1, len(set(self.inner.get_node_ids() if self.hosts is None else self.hosts.values())))

    def note_reply_size(self, size: int) -> None:
        """Take the bytes of one client's reply into the estimate that the window goes by."""
        self._sizes.append(size)
        covered = sorted(self._sizes)[int(SHARE_COVERED * (len(self._sizes) - 1))]
        self.reply_bytes = max(covered, 1024)

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
        """Make a message to a client."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all clients, ascending."""
        return sorted(self.inner.get_node_ids() if self.hosts is None else self.hosts)

    def get_nodes(self) -> list[object]:  # type: ignore[override]  # the type of a node's info is not public
        """Return the inner grid's SuperNodes."""
        return list(self.inner.get_nodes())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: replies of several clients share one message, so only ``send_and_receive`` can pair them."""
        raise TypeError("clients of one SuperNode share messages; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse, as :meth:`push_messages`."""
        raise TypeError("clients of one SuperNode share messages; use send_and_receive")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send messages to clients and yield one reply for each, lazily, in the order of the client ids.

        Parameters
        ----------
        messages : iterable of Message
            At most one per client, with the client's id as destination.
        timeout : float, optional
            Seconds for all together, beside the time limit of each request.
        """
        order = sorted(messages, key=lambda msg: msg.metadata.dst_node_id)
        with self.progress.doing("{done} of {total} sites answered", len(order)) as step:
            for reply in Exchange(self, order, timeout, step).replies():
                if self.on_reply is not None:
                    self.on_reply(reply)
                yield reply
                del reply  # do not hold a Gram matrix while waiting for the next


@dataclass
class _InFlight:
    """One message on its way: which clients of the order it carries, and when it was sent."""

    clients: list[int]
    sent: float


@dataclass
class Exchange:
    """One call of :meth:`ClientGrid.send_and_receive`.

    Attributes
    ----------
    grid : ClientGrid
        Whose window, hosts and limits hold.
    order : list of Message
        One per client, in the order in which replies are wanted.
    timeout : float or None
        Seconds for all together.
    step : Step
        Is told how many clients have answered, or will not.
    """

    grid: ClientGrid
    order: list[Message]
    timeout: float | None
    step: Step
    turn: int = 0
    num_hosts: int = 1
    # How often requests ran out of time so far, those that did so together counting once.
    stalls: int = 0
    # Where the window ended when it was last looked for clients to ask.
    looked_to: int = 0
    # Ascending.
    unsent: list[int] = field(default_factory=list)
    in_flight: dict[str, _InFlight] = field(default_factory=dict)
    ready: dict[int, Message] = field(default_factory=dict)
    last_reply: float = field(default_factory=time.monotonic)

    def replies(self) -> Iterator[Message]:
        """Yield one reply for each message, in their order.

        However many SuperNodes are silent, they cost at most three time limits. After the first stall everybody else is
        asked at once, so that their time runs together (replies stay with Flower until they fit the window), and from
        the third one on the limit is half of what it was at the one before.
        """
        started, poll = time.monotonic(), FIRST_POLL
        for index, instruction in enumerate(self.order):
            client = instruction.metadata.dst_node_id
            if self.grid.silences.rests(client):
                self._fail([index], self.grid.silences.reason(client))
            else:
                self.unsent.append(index)
        self.num_hosts = self.grid.num_hosts
        while self.turn < len(self.order):
            self._send()
            progressed = self._receive()
            self._expire(started)
            while self.turn in self.ready:
                reply = self.ready.pop(self.turn)
                self.turn += 1
                yield reply
                del reply  # the consumer is done with it: do not hold a Gram matrix while waiting for the next
                progressed = True
            poll = next_poll(poll, progressed=progressed)
            if not progressed:
                time.sleep(poll)

    def _window(self) -> int:
        return max(1, min(CLIENTS_PER_WINDOW, self.grid.window_bytes // self.grid.reply_bytes))

    def _send(self) -> None:
        """Send requests of the clients that fit the window, in the order of the clients, grouped by host.

        One slot becomes free with every reply. A host whose slots do not fill a message yet waits for more of them,
        unless one of them is next in turn, or no client is left beyond the window, or nothing is under way.
        """
        window = self._window()
        # So few clients in a message that every host has another one ahead of it.
        limit = 1 if self.grid.hosts is None else max(1, min(CLIENTS_PER_MESSAGE, window // (2 * self.num_hosts)))
        end = len(self.order) if self.stalls else min(self.turn + window, len(self.order))
        in_turn = bool(self.unsent) and self.unsent[0] == self.turn
        if self.in_flight and not in_turn and end < min(self.looked_to + limit, len(self.order)):
            return
        self.looked_to = end
        sendable = self.unsent[: bisect.bisect_left(self.unsent, end)]
        groups: defaultdict[tuple[int, str, int], list[int]] = defaultdict(list)
        for index in sendable:
            msg = self.order[index]
            groups[self.grid.host(msg.metadata.dst_node_id), msg.metadata.message_type, id(msg.content)].append(index)
        everything = len(sendable) == len(self.unsent) or not self.in_flight
        batches = [group[start : start + limit] for group in groups.values() for start in range(0, len(group), limit)]
        batches = sorted(batch for batch in batches if everything or len(batch) == limit or batch[0] == self.turn)
        sent = {index for batch in batches for index in batch}
        self.unsent[: len(sendable)] = [index for index in sendable if index not in sent]
        wire = [self._wire_message(batch) for batch in batches]
        for message_id, batch in zip(push(self.grid.inner, wire), batches, strict=True):
            if message_id is None:
                self._fail(batch, "the message could not be sent: its SuperNode is gone, or the message too large")
            else:
                self.in_flight[message_id] = _InFlight(batch, time.monotonic())

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
        received, awaited = False, self._awaited()
        for reply in self.grid.inner.pull_messages(list(awaited)) if awaited else ():
            request = self.in_flight.pop(reply.metadata.reply_to_message_id, None)
            if request is None:
                continue
            received, self.last_reply = True, time.monotonic()
            for index in request.clients:
                instruction = self.order[index]
                client = None if self.grid.hosts is None else instruction.metadata.dst_node_id
                answer = unpack_reply(reply, client, instruction)
                if answer.has_content():
                    self.grid.note_reply_size(array_bytes(answer.content))
                if answer.has_content() or answer.error.code not in SERVER_SIDE_CODES:
                    self.grid.silences.note_answer(instruction.metadata.dst_node_id)
                self._take(index, answer)
        return received

    def _awaited(self) -> dict[str, _InFlight]:
        """Return the messages whose replies may be fetched: those that begin in the window."""
        end = self.turn + self._window()
        return {message_id: request for message_id, request in self.in_flight.items() if request.clients[0] < end}

    def _expire(self, started: float) -> None:
        """Give up on requests that took too long, and on all when the time for the whole exchange is over."""
        now, late = time.monotonic(), []
        for message_id, request in self._awaited().items():
            waited = now - max(request.sent, self.last_reply)
            allowed = self.grid.reply_timeout * len(request.clients) * 0.5 ** max(0, self.stalls - 1)
            if waited > allowed:
                late.append((message_id, allowed))
        for message_id, allowed in late:
            request = self.in_flight.pop(message_id)
            self._fail(request.clients, f"no reply within {allowed:g} s (reply-timeout)", silent=True)
            # One that hosts many clients is not waited for again: that would take hours.
            host = self.grid.host(self.order[request.clients[0]].metadata.dst_node_id)
            hosted = [index for index in self.unsent if self.grid.host(self.order[index].metadata.dst_node_id) == host]
            self._fail(hosted, "not asked: its SuperNode did not answer an earlier request in time", silent=True)
            self.unsent = [index for index in self.unsent if index not in self.ready]
        self.stalls += bool(late)
        if self.timeout is not None and now - started > self.timeout:
            for request in self.in_flight.values():
                self._fail(request.clients, f"no reply when the {self.timeout:.0f} s for all clients were over")
            self._fail(self.unsent, f"not asked before the {self.timeout:.0f} s for all clients were over")
            self.in_flight, self.unsent = {}, []

    def _fail(self, batch: list[int], reason: str, *, silent: bool = False) -> None:
        for index in batch:
            instruction = self.order[index]
            self._take(index, Message(Error(code=NO_REPLY_CODE, reason=reason), reply_to=instruction))
            if silent:
                self.grid.silences.note_timeout(instruction.metadata.dst_node_id)

    def _take(self, index: int, answer: Message) -> None:
        self.ready[index] = answer
        self.step.at(self.turn + len(self.ready))
