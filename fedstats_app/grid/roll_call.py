"""Asking every SuperNode once, as it comes, which clients it hosts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.grid.asking import to_all
from fedstats_app.grid.link import push
from fedstats_app.wire import QUERY_CLIENTS, NodeInfo, RejectedReply, read_node_info


class RollCall:
    """Asks every node once, as it comes; a node that does not answer keeps nobody waiting but itself."""

    def __init__(self, grid: Grid, reply_timeout: float, on_reply: Callable[[Message], None] | None) -> None:
        self.grid, self.reply_timeout, self.on_reply = grid, reply_timeout, on_reply
        self.infos: dict[int, NodeInfo] = {}
        self.refused: dict[int, str] = {}
        self.waiting: dict[str, tuple[int, float]] = {}
        self.newest = time.monotonic()
        self._asked: set[int] = set()

    @property
    def expected(self) -> int | None:
        """Number of partitions that most of the nodes in a simulation report."""
        hosting = [info.num_partitions for info in self.infos.values() if info.partition_id is not None]
        return most_common(hosting) if 2 * len(hosting) > len(self.infos) else None

    @property
    def num_partitioned(self) -> int:
        """Number of different partitions of those expected."""
        expected = self.expected
        return len({info.partition_id for info in self.infos.values() if info.num_partitions == expected})

    def ask_new_nodes(self) -> bool:
        """Send the question to all nodes that were not there before, and return whether there were any."""
        new = sorted(set(self.grid.get_node_ids()) - self._asked)
        if not new:
            return False
        self._asked.update(new)
        self.newest = time.monotonic()
        messages = to_all(RecordDict(), QUERY_CLIENTS, new)
        for node, message_id in zip(new, push(self.grid, messages), strict=True):
            if message_id is None:
                self.refused[node] = "the message could not be sent"
            else:
                self.waiting[message_id] = (node, self.newest)
        return True

    def receive(self) -> bool:
        """Take the answers that are there, give up on nodes that had ``reply_timeout`` seconds; return whether any."""
        before = len(self.waiting)
        if not before:
            return False
        for reply in self.grid.pull_messages(list(self.waiting)):
            node, _ = self.waiting.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if self.on_reply is not None:
                self.on_reply(reply)
            try:
                self.infos[node] = read_node_info(reply)
            except RejectedReply as error:
                self.refused[node] = str(error)
        late = {
            message_id: node
            for message_id, (node, sent) in self.waiting.items()
            if time.monotonic() - sent > self.reply_timeout
        }
        for message_id, node in late.items():
            del self.waiting[message_id]
            self.refused[node] = f"no reply within {self.reply_timeout:.0f} s (reply-timeout)"
        return len(self.waiting) < before

    def give_up(self, reason: str) -> None:
        """Refuse all nodes that have not answered."""
        self.refused.update({node: reason for node, _ in self.waiting.values()})
        self.waiting = {}


def most_common(numbers: Iterable[int | None]) -> int | None:
    """Return the number that comes most often, the largest of several, None without any."""
    counts = Counter(number for number in numbers if number is not None)
    return max(counts, key=lambda number: (counts[number], number), default=None)
