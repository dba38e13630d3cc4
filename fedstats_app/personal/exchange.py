"""One question to many clients about their personal models, and an account of the answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.outcomes.personal_result import PersonalResult
from fedstats_app.wire import RejectedReply
from fedstats_app.wire.personal import PersonalMetrics

logger = logging.getLogger("fedstats_app")

Answer = TypeVar("Answer")

BYTES_PER_METRIC = 8


@dataclass
class Answers(Generic[Answer]):
    """What clients answered, and what did not count.

    Attributes
    ----------
    of : dict
        From client to answer, in the order of the clients.
    failures : dict
        From every other client that was asked to the reason.
    bytes_down, bytes_up : int
        Of the arrays down; of the arrays and metrics of the answers that count up.
    """

    of: dict[int, Answer] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0

    def add_bytes(self, other: Answers[Any]) -> None:
        """Count the bytes of an earlier or later round too."""
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up


def ask(
    grid: ClientGrid,
    content: RecordDict,
    message_type: str,
    clients: Iterable[int],
    read: Callable[[Message], Answer],
) -> Answers[Answer]:
    """Send the same request to clients and read their replies; one that must not be used is named and left out.

    Parameters
    ----------
    grid : ClientGrid
        The one that stage 1 ran on.
    content : RecordDict
        The request.
    message_type : str
        Of the request.
    clients : iterable of int
        Whom to ask.
    read : callable
        From a reply to an answer; raises :class:`RejectedReply`.
    """
    messages = [Message(content, dst_node_id=client, message_type=message_type) for client in sorted(clients)]
    answers: Answers[Answer] = Answers(bytes_down=len(messages) * num_bytes(content))
    for reply in grid.send_and_receive(messages):
        client = int(reply.metadata.src_node_id)
        try:
            answers.of[client] = read(reply)
        except RejectedReply as error:
            logger.warning("client %d is left out of %s: %s", client, message_type, error)
            answers.failures[client] = str(error)
            continue
        answers.bytes_up += num_bytes(reply.content)
    return answers


def num_bytes(content: RecordDict) -> int:
    """Return the bytes of arrays and metrics; settings, a few hundred bytes, are not counted."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        elif isinstance(record, MetricRecord):
            total += BYTES_PER_METRIC * len(record)
    return total


def personal_result(
    approach: str, answers: Answers[PersonalMetrics], started: float, *, before: bool = False
) -> PersonalResult:
    """Return the result of an approach that asks once.

    Parameters
    ----------
    approach : str
        Its name.
    answers : Answers of PersonalMetrics
        What clients said.
    started : float
        ``time.perf_counter()`` when it began.
    before : bool
        Of the models that clients started from, rather than of their own; those cost no training.
    """
    tested = {client: metrics for client, metrics in answers.of.items() if metrics.num_test}
    return PersonalResult(
        approach,
        {client: metrics.correct_before if before else metrics.correct_after for client, metrics in tested.items()},
        {client: metrics.num_test for client, metrics in tested.items()},
        answers.failures,
        answers.bytes_down,
        answers.bytes_up,
        0 if before else sum(metrics.forward_passes for metrics in answers.of.values()),
        time.perf_counter() - started,
    )


def scored(correct: Mapping[int, int], tested: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return both without the clients that have no test samples."""
    clients = [client for client, number in tested.items() if number]
    return {client: correct[client] for client in clients}, {client: tested[client] for client in clients}
