"""Folding replies into sums, one client after another, and keeping account of each."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from flwr.app import Message
from torch import Tensor

from fedstats_app.base.rank_rule import OverBudget
from fedstats_app.privacy import RefusedByPolicy, says_much_about_samples
from fedstats_app.statistics import StatisticsSpec, TargetSums, client_digest
from fedstats_app.statistics.collected import CollectedStatistics, MergedClient, StatisticsSum
from fedstats_app.wire import Limits, ReceivedStatistics, RejectedReply, StatisticsRequest, read_statistics_reply
from fedstats_app.wire.statistics_records import WireBytes

# The end of year 9999, the last that a date has.
_LAST_SECOND = 253_402_300_799
logger = logging.getLogger("fedstats_app")


@dataclass(frozen=True)
class ClientOutcome:
    """Outcome of one client's request.

    Attributes
    ----------
    client : int
        The node id with a plain Grid, else as :class:`ClientGrid` numbers them.
    outcome : str
        "merged"; "known" (its very statistics are in those of the run that this one extends); "refused" (by its owner's
        policy); "failed" (it said so, or no reply came in time); "rejected" (its reply must not be used).
    reason : str
        Why, where it was not merged.
    num_examples, num_unreadable, wire_bytes : int
        Of a merged reply; of a known client its samples only.
    seconds : float
        Time the client says it took.
    engine : str
        What computed its features, as the client says: "torch", "openvino" or "openvino-bf16"; "" where it does not.
    num_suppressed_classes : int
        Classes that the client says it left out because it has few samples of them.
    waiting : str
        How many of its samples wait for a further release, and when the one that it answered with was made.
    warning : str
        What its owner should know of a merged reply.
    share : float
        Of all samples in the heads, of a merged reply.
    class_shares : mapping
        From the name of every class that it has to its share of that class's samples.
    times_usual_spread : float or None
        How many times as far as is usual its class means or samples are spread
        (:func:`fedstats_app.heads.influence.spreads`); None where that was not measured.
    """

    client: int
    outcome: str
    reason: str = ""
    num_examples: int = 0
    num_unreadable: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0
    engine: str = ""
    num_suppressed_classes: int = 0
    waiting: str = ""
    warning: str = ""
    share: float = 0.0
    class_shares: Mapping[str, float] = field(default_factory=dict)
    times_usual_spread: float | None = None

    @property
    def in_heads(self) -> bool:
        """True if the client's statistics are in the heads."""
        return self.outcome in ("merged", "known")

    def to_json(self) -> dict[str, object]:
        """Return the attributes as plain values."""
        return {**vars(self)}


@dataclass(frozen=True)
class ReplySize:
    """Bytes of a merged client's reply: of the arrays, and of the other records."""

    other_bytes: int
    arrays: WireBytes


class Members:
    """The clients in a sum: those of earlier runs, and those of this one by what they sent and by their names.

    Parameters
    ----------
    names : mapping
        From client to the name by which its data are known again when they have changed; others have none.
    earlier : tuple of MergedClient
        Of the runs that this one extends.

    Attributes
    ----------
    digests : dict
        From each client that was merged in this run to what identifies its statistics.
    """

    def __init__(self, names: Mapping[int, str], earlier: tuple[MergedClient, ...]) -> None:
        self.digests: dict[int, str] = {}
        self._names, self._earlier = names, earlier
        self._known = {member.digest: member for member in earlier if member.digest}

    def __len__(self) -> int:
        """Return their number."""
        return len(self._earlier) + len(self.digests)

    def known(self, digest: str) -> MergedClient | None:
        """Return the client of an earlier run that sent the very same statistics."""
        return self._known.get(digest)

    def check_name(self, client: int) -> None:
        """Refuse a client under the name of one that is in the sum with other statistics: it would count twice."""
        if not (name := self._names.get(client, "")):
            return
        if any(self._names.get(other) == name for other in self.digests):
            raise RejectedReply(f"client-name {name!r} is that of another client, which is in the sum already")
        if before := next((member for member in self._earlier if member.name == name), None):
            raise RejectedReply(
                f"client-name {name!r} is that of {_named(before)}, which is in the "
                f"statistics to extend with other data: `fedstats remove` it (--client {before.run}/{before.client}) "
                "and extend the run without it"
            )

    def listed(self, run: str) -> tuple[MergedClient, ...]:
        """List them; ``run`` names this run where its clients are met again."""
        names = self._names
        own = (MergedClient(digest, run, client, names.get(client, "")) for client, digest in self.digests.items())
        return (*self._earlier, *own)


class Collection:
    """The merged statistics of all clients so far, and what became of each client.

    Parameters
    ----------
    request : StatisticsRequest
        What clients were asked for.
    keep_rows : bool
        Whether every row is kept beside the sum.
    feature_dim : int, optional
        d of the backbone; by default that of the first valid reply.
    earlier : CollectedStatistics, optional
        Of earlier runs, to which clients are added. The sum is changed in place.
    limits : Limits
        Replies beyond them are rejected.
    names : mapping
        As of :class:`Members`.
    spec : StatisticsSpec, optional
        Of the sum, by default the request's. Where it is another, clients add sums by target to those of their samples
        that are in the sum already.

    Attributes
    ----------
    members : Members
        The clients in the sum.
    outcomes : list of ClientOutcome
        In the order of folding.

    Raises
    ------
    ValueError
        If the earlier statistics are not of the kind that is asked for.
    """

    def __init__(
        self,
        request: StatisticsRequest,
        keep_rows: bool,
        feature_dim: int | None = None,
        earlier: CollectedStatistics | None = None,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        names: Mapping[int, str] = MappingProxyType({}),
        spec: StatisticsSpec | None = None,
    ) -> None:
        self._spec = request.spec if spec is None else spec
        self.request, self._keep_rows, self._feature_dim, self._limits = request, keep_rows, feature_dim, limits
        self.outcomes: list[ClientOutcome] = []
        self._total: StatisticsSum | None = None
        self._held: Tensor | None = None
        self._added: set[int] = set()
        if earlier is not None:
            _check_kind(earlier, replace(request, spec=self._spec), keep_rows)
            self._total, targets = earlier.total, earlier.total.summed(gram=False).targets
            self._held = None if targets is None else targets.known > 0
        self.members = Members(names, () if earlier is None else earlier.clients)
        self._num_earlier = self._total.num_examples if self._total is not None else 0
        self._sizes: list[ReplySize] = []
        # Of all of them, because it is asked for after every client.
        self._num_received = self._bytes_received = 0

    def fold(self, reply: Message) -> tuple[ClientOutcome, ReceivedStatistics | None]:
        """Check a reply and add it, or note why not; the sum is as before then."""
        client, received = int(reply.metadata.src_node_id), None
        try:
            if client in self.members.digests:
                raise RejectedReply("this client's statistics are in the sum already")
            received = read_statistics_reply(reply, self.request, feature_dim=self._feature_dim, limits=self._limits)
            digest = client_digest(received.statistics)
            before = self.members.known(digest)
            if self._spec != self.request.spec and before is None:
                raise RejectedReply(
                    "its samples are not in the statistics to extend, which it would only add labels to"
                )
            if before is not None and received.statistics.targets is not None:
                outcome = self._with_more_targets(client, received, received.statistics.targets)
                received = None
            elif before is not None:
                reason = f"these very statistics are in those to extend already, as {_named(before)}"
                logger.info("client %d not counted twice: %s", client, reason)
                number, seconds = received.num_examples, received.seconds
                outcome, received = ClientOutcome(client, "known", reason, number, seconds=seconds), None
            else:
                self.members.check_name(client)
                self._add(received)
                self.members.digests[client] = digest
                outcome = ClientOutcome(
                    client,
                    "merged",
                    num_examples=received.num_examples,
                    num_unreadable=received.num_unreadable,
                    wire_bytes=received.wire_bytes,
                    seconds=received.seconds,
                    engine=received.engine,
                    num_suppressed_classes=received.num_suppressed_classes,
                    waiting=_waiting(received),
                    warning=_warning(received),
                )
        except RejectedReply as error:
            # A reason begins with the type of what was raised on the node.
            refused = str(error).startswith(tuple(f"{kind.__name__}: " for kind in (RefusedByPolicy, OverBudget)))
            kind = "rejected" if not reply.has_error() else "refused" if refused else "failed"
            outcome, received = ClientOutcome(client, kind, str(error)), None
            logger.warning("client %d %s: %s", client, outcome.outcome, error)
        self.outcomes.append(outcome)
        return outcome, received

    def _with_more_targets(self, client: int, received: ReceivedStatistics, targets: TargetSums) -> ClientOutcome:
        """Add a client's targets that the earlier statistics lack; its samples are in them already."""
        if client in self._added:
            raise RejectedReply("this client's statistics are in the sum already")
        self._added.add(client)
        new = (~self._held).nonzero().squeeze(1) if self._held is not None else torch.arange(len(targets.known))
        self.total.add_targets(targets.chosen(new).placed(new, len(targets.known)))
        self._bytes_received += received.wire_bytes
        self._sizes.append(ReplySize(received.other_bytes, received.size))
        reason = (
            f"its samples are in the statistics to extend; {int((targets.known[new] > 0).sum())} more of their labels"
        )
        return ClientOutcome(
            client,
            "known",
            reason,
            received.num_examples,
            wire_bytes=received.wire_bytes,
            seconds=received.seconds,
        )

    def take_sum(self, total: StatisticsSum, merged: Iterable[int], bytes_received: int) -> None:
        """Take a sum over clients of which no one's part is seen; their outcomes are for the caller to add."""
        self._total, self.members.digests = total, dict.fromkeys(merged, "")
        self._num_received, self._bytes_received = total.num_examples, bytes_received

    def collected(self, class_names: Sequence[str], run: str) -> CollectedStatistics:
        """Return all that was collected, for a later run to extend.

        ``run`` names this one where its clients are met again.

        Raises
        ------
        RejectedReply
            If no client was merged yet.
        """
        fingerprint, clients = self.request.backbone_fingerprint, self.members.listed(run)
        return CollectedStatistics(tuple(class_names), self._spec, self.total, fingerprint, clients)

    @property
    def num_merged(self) -> int:
        """Number of clients in the sum, those of earlier runs included."""
        return len(self.members)

    @property
    def num_examples(self) -> int:
        """Number of samples in the sum, those of earlier runs included."""
        return self._num_earlier + self._num_received

    @property
    def total_wire_bytes(self) -> int:
        """Bytes of all replies merged in this run."""
        return self._bytes_received

    def wire_bytes(self, wanted: StatisticsSpec) -> int:
        """Count the bytes of all clients for ``wanted`` alone, which the request's specification covers."""
        rows = "rows" if wanted.means_per_class > 1 or wanted.scatter else "single_rows"
        more = "gram" if wanted.gram else "scatter" if wanted.scatter else ""
        return sum(
            size.other_bytes + getattr(size.arrays, rows) + (getattr(size.arrays, more) if more else 0)
            for size in self._sizes
        )

    @property
    def total(self) -> StatisticsSum:
        """The sum.

        Raises
        ------
        RejectedReply
            If no client was merged yet.
        """
        if self._total is None:
            raise RejectedReply("no client's statistics were merged yet")
        return self._total

    def _add(self, received: ReceivedStatistics) -> None:
        client, spec = received.statistics, self.request.spec
        dim = client.rows.feature_dim
        total = self._total or StatisticsSum(
            self.request.num_classes, dim, gram=spec.gram, keep_rows=self._keep_rows, scatter=spec.scatter is not None
        )
        if total.feature_dim != dim:
            raise RejectedReply(
                f"class-sums: feature dimension must be {total.feature_dim}, as the first client's, got {dim}"
            )
        total.add(client)
        self._total = total
        self._sizes.append(ReplySize(received.other_bytes, received.size))
        self._num_received += received.num_examples
        self._bytes_received += received.wire_bytes


def _check_kind(earlier: CollectedStatistics, request: StatisticsRequest, keep_rows: bool) -> None:
    """Refuse to add clients to statistics of another kind."""
    for name, before, now in (
        ("backbone (fingerprint)", earlier.backbone_fingerprint, request.backbone_fingerprint),
        ("number of classes", len(earlier.class_names), request.num_classes),
        ("statistics (methods, means per class)", earlier.spec, request.spec),
        ("rows kept", earlier.total.keeps_rows, keep_rows),
    ):
        if before != now:
            raise ValueError(f"the statistics to extend are of another kind: {name} was {before}, is {now}")


def _named(client: MergedClient) -> str:
    return f"client {client.client} of run {client.run}"


def _waiting(received: ReceivedStatistics) -> str:
    if not received.num_waiting:
        return ""
    made = datetime.datetime.fromtimestamp(min(received.made, _LAST_SECOND), datetime.UTC)
    return f"as of {made:%d %B %Y}; {received.num_waiting} of its samples wait for a further release"


def _warning(received: ReceivedStatistics) -> str:
    """Warn of Gram matrices and factors of scatter that are close to the samples themselves."""
    client = received.statistics
    if client.completed:
        return (
            "it has too few samples for a Gram matrix (min-gram-samples): it sent rows and a few directions, from "
            "which the server made one with the same trace"
        )
    dim, name = client.rows.feature_dim, "Gram matrix" if client.has_gram else "factor of the scatter"
    sent = client.has_gram or client.scatter is not None
    if sent and says_much_about_samples(received.num_examples, dim):
        return (
            f"its {name} of {received.num_examples:,} samples in {dim:,} dimensions, fewer than 2 d, says much about "
            "single ones (a node's min-gram-samples prevents it)"
        )
    return ""
