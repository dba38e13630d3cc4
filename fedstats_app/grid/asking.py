"""One question to clients and what came of it: answers that can be used, reasons of those that cannot, bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedstats_app.wire import RejectedReply

logger = logging.getLogger("fedstats_app")

Answer = TypeVar("Answer")

BYTES_PER_METRIC = 8
# Of many failures, how many are shown.
REASONS_SHOWN = 3


@dataclass
class Answers(Generic[Answer]):
    """Answers of clients, and the reasons why others did not count.

    Attributes
    ----------
    by_client : dict
        From client to answer, in the order of the clients.
    failures : dict
        From every other client that was asked to the reason.
    bytes_down, bytes_up : int
        What was sent to all that were asked, and what came from those whose answers count.
    """

    by_client: dict[int, Answer] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0

    def add_bytes(self, other: Answers[Any]) -> None:
        """Count the bytes of an earlier or later round too."""
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up

    def reasons(self) -> str:
        """Return the first failures in words."""
        return first_reasons([f"site {client}: {reason}" for client, reason in self.failures.items()])


def to_all(content: RecordDict, message_type: str, clients: Iterable[int]) -> list[Message]:
    """Return a message with the same content to each client, in their order."""
    return [Message(content, dst_node_id=client, message_type=message_type) for client in sorted(clients)]


def usable(
    replies: Iterable[Message],
    read: Callable[[Message], Answer],
    failures: dict[int, str],
    clients: Container[int] | None = None,
) -> Iterator[tuple[int, Message, Answer]]:
    """Yield client, reply and answer of the replies that can be used, one after another, and note why others cannot.

    ``read`` raises :class:`RejectedReply`, ``failures`` takes the reasons by client; ``clients`` are those that were
    asked, by default all that answer.
    """
    for reply in replies:
        client = int(reply.metadata.src_node_id)
        try:
            if clients is not None and client not in clients:
                raise RejectedReply("it was not asked")
            answer = read(reply)
        except RejectedReply as error:
            failures[client] = str(error)
            continue
        yield client, reply, answer
        del reply, answer  # do not hold an upload while waiting for the next


def ask(
    grid: Grid, content: RecordDict, message_type: str, clients: Iterable[int], read: Callable[[Message], Answer]
) -> Answers[Answer]:
    """Send the same request to clients and read their replies; one that must not be used is named and left out.

    ``read`` raises :class:`RejectedReply` of a reply without an answer.
    """
    expected = set(clients)
    messages = to_all(content, message_type, expected)
    answers: Answers[Answer] = Answers(bytes_down=len(messages) * num_bytes(content))
    for client, reply, answer in usable(grid.send_and_receive(messages), read, answers.failures, expected):
        answers.by_client[client] = answer
        answers.bytes_up += num_bytes(reply.content)
    for client, reason in answers.failures.items():
        logger.warning("client %d is left out of %s: %s", client, message_type, reason)
    return answers


def first_reasons(reasons: Sequence[str]) -> str:
    """Return the first reasons as one line, and how many more there are."""
    more = len(reasons) - REASONS_SHOWN
    return "; ".join(reasons[:REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def array_bytes(content: Mapping[str, Any]) -> int:
    """Return the bytes of a message's arrays."""
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in records for array in record.values())


def num_bytes(content: Mapping[str, Any]) -> int:
    """Return the bytes of arrays and metrics; settings, a few hundred bytes, are not counted."""
    metrics = sum(len(record) for record in content.values() if isinstance(record, MetricRecord))
    return array_bytes(content) + BYTES_PER_METRIC * metrics
