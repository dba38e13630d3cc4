"""Folding replies into sums, one client after another, and keeping account of each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from flwr.app import Message

from fedstats_app.statistics import StatisticsSpec, StatisticsSum
from fedstats_app.wire import ReceivedStatistics, RejectedReply, StatisticsRequest, read_statistics_reply

logger = logging.getLogger("fedstats_app")


@dataclass(frozen=True)
class ClientOutcome:
    """What became of one client's request.

    Attributes
    ----------
    client : int
        Client id: the node id with a plain Grid, else as :class:`ClientGrid` numbers them.
    server_round : int
        In which it was asked.
    outcome : str
        "merged", "failed" (it said so, or no reply came in time) or "rejected" (its reply must not be used).
    reason : str
        Why, where it was not merged.
    num_examples, num_unreadable, wire_bytes : int
        Of a merged reply.
    seconds : float
        Time the client says it took.
    """

    client: int
    server_round: int
    outcome: str
    reason: str = ""
    num_examples: int = 0
    num_unreadable: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, str | int | float]:
        """Return the attributes as plain values."""
        return asdict(self)


class Collection:
    """The merged statistics of all clients so far: one sum per specification of the request.

    Parameters
    ----------
    request : StatisticsRequest
        What clients were asked for.
    keep_rows : sequence of bool
        Per specification, whether every row is kept beside the sum.
    feature_dim : int, optional
        d of the backbone; by default that of the first valid reply.

    Attributes
    ----------
    outcomes : list of ClientOutcome
        In the order of folding.
    """

    def __init__(self, request: StatisticsRequest, keep_rows: Sequence[bool], feature_dim: int | None = None) -> None:
        self.request = request
        self.outcomes: list[ClientOutcome] = []
        self._keep_rows = list(keep_rows)
        self._feature_dim = feature_dim
        self._sums: list[StatisticsSum] = []
        self._merged: set[int] = set()
        self._row_bytes = [0] * len(request.specs)
        self._single_row_bytes = [0] * len(request.specs)
        self._gram_bytes = [0] * len(request.specs)
        self._other_bytes = 0

    def fold(self, server_round: int, reply: Message) -> tuple[ClientOutcome, ReceivedStatistics | None]:
        """Check a reply and add it, or note why not; the sums are as before then."""
        client = int(reply.metadata.src_node_id)
        try:
            if client in self._merged:
                raise RejectedReply("this client's statistics are in the sum already")
            received = read_statistics_reply(reply, self.request, feature_dim=self._feature_dim)
            self._add(received)
        except RejectedReply as error:
            outcome = ClientOutcome(client, server_round, "failed" if reply.has_error() else "rejected", str(error))
            logger.warning("client %d %s: %s", client, outcome.outcome, error)
            self.outcomes.append(outcome)
            return outcome, None
        self._merged.add(client)
        outcome = ClientOutcome(
            client,
            server_round,
            "merged",
            num_examples=received.num_examples,
            num_unreadable=received.num_unreadable,
            wire_bytes=received.wire_bytes,
            seconds=received.seconds,
        )
        self.outcomes.append(outcome)
        return outcome, received

    @property
    def num_merged(self) -> int:
        """Number of clients in the sums."""
        return len(self._merged)

    @property
    def num_examples(self) -> int:
        """Number of samples in the sums."""
        return sum(outcome.num_examples for outcome in self.outcomes)

    @property
    def total_wire_bytes(self) -> int:
        """Bytes of all merged replies."""
        return sum(self._row_bytes) + sum(self._gram_bytes) + self._other_bytes

    def wire_bytes(self, index: int, wanted: StatisticsSpec) -> int:
        """Return what clients would have sent for ``wanted`` alone, which the specification at ``index`` covers."""
        rows = self._single_row_bytes if wanted.means_per_class == 1 else self._row_bytes
        return rows[index] + (self._gram_bytes[index] if wanted.gram else 0) + self._other_bytes

    def statistics(self, index: int) -> StatisticsSum:
        """Return the sum of one specification.

        Raises
        ------
        RejectedReply
            If no client was merged yet.
        """
        if not self._sums:
            raise RejectedReply("no client's statistics were merged yet")
        return self._sums[index]

    def _add(self, received: ReceivedStatistics) -> None:
        sums = self._sums or [
            StatisticsSum(
                self.request.num_classes, client.rows.feature_dim, gram=client.gram is not None, keep_rows=keep_rows
            )
            for client, keep_rows in zip(received.statistics, self._keep_rows, strict=True)
        ]
        for total, client in zip(sums, received.statistics, strict=True):
            if total.feature_dim != client.rows.feature_dim:
                raise RejectedReply(
                    f"class-sums: feature dimension must be {total.feature_dim}, as the first client's, "
                    f"got {client.rows.feature_dim}"
                )
        for total, client in zip(sums, received.statistics, strict=True):
            total.add(client)
        self._sums = sums
        self._row_bytes = [a + b for a, b in zip(self._row_bytes, received.row_bytes, strict=True)]
        self._single_row_bytes = [a + b for a, b in zip(self._single_row_bytes, received.single_row_bytes, strict=True)]
        self._gram_bytes = [a + b for a, b in zip(self._gram_bytes, received.gram_bytes, strict=True)]
        self._other_bytes += received.other_bytes
