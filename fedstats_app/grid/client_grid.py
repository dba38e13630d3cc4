"""Clients as nodes: strategies see clients, whatever the number of SuperNodes that host them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedstats_app.grid.exchange import Exchange, Link


class ClientGrid(Link, Grid):
    """A Grid whose nodes are clients, in a fixed order, over another Grid whose nodes are SuperNodes.

    ``send_and_receive`` packs several clients' requests into one message, keeps a bounded number of replies
    outstanding (in flight or waiting for their turn) and yields replies lazily, in the order of the client ids: what
    folds them in that order gets the same bytes whatever the network does. A client that fails or does not answer
    yields a reply with an error, in its place.

    Its parameters are those of :class:`Link`.
    """

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
        counted = nullcontext() if self.counted is None else self.counted.said(order, self.progress)
        with counted, self.progress.doing("{done} of {total} clients answered", len(order)) as step:
            for reply in Exchange(self, order, timeout, step).replies():
                if self.on_reply is not None:
                    self.on_reply(reply)
                yield reply
                del reply  # do not hold a Gram matrix while waiting for the next

    def _require_identity(self, what: str) -> None:
        if self.hosts is not None:
            raise TypeError(f"{what} needs one client per SuperNode; use send_and_receive")
