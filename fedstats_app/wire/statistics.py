"""``query.statistics``: the request, the reply, and the checks that a stranger's reply must pass.

The request is one ConfigRecord ``request``. The reply has an ArrayRecord ``statistics``
(:mod:`fedstats_app.wire.statistics_records`) and a MetricRecord ``metrics``, which says how many classes the node's
policy suppressed if there are any, but neither which nor how many samples. A ConfigRecord ``about`` names backbone and
engine if they have a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.backbones.engine import ENGINES
from fedstats_app.base.option import as_text
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.statistics.specification import SampleRequest
from fedstats_app.wire.arrays import NUMBER_BYTES
from fedstats_app.wire.reading import (
    LARGEST_WHOLE,
    Malformed,
    check_keys,
    counted,
    from_record,
    from_values,
    measured,
    optional,
    reads_replies,
    reads_requests,
    record_of,
    to_values,
)
from fedstats_app.wire.statistics_checks import Limits
from fedstats_app.wire.statistics_records import WireBytes, read_statistics_record, statistics_record

QUERY_STATISTICS = "query.statistics"

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_MEANS_PER_CLASS = 10_000

MAX_FINGERPRINT_LENGTH = 128


# The request


@dataclass(frozen=True)
class StatisticsRequest(SampleRequest):
    """Request for a client's statistics.

    Attributes
    ----------
    spec : StatisticsSpec
        The statistics; the seed draws which samples share a mean if it asks for several per class.
    wire_dtype : str
        One of :data:`fedstats_app.wire.arrays.NUMBER_BYTES`, for sums and Gram matrices.
    server_round : int
        1 for the first.
    """

    spec: StatisticsSpec = field(
        default=StatisticsSpec(), metadata=as_text(StatisticsSpec.to_dict, StatisticsSpec.from_dict, "specification")
    )
    wire_dtype: str = "float32"
    server_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spec.means_per_class > MAX_MEANS_PER_CLASS:
            raise ValueError(f"means_per_class must be at most {MAX_MEANS_PER_CLASS}")
        if self.wire_dtype not in NUMBER_BYTES:
            raise ValueError(f"wire_dtype must be one of {', '.join(NUMBER_BYTES)}, got {self.wire_dtype!r}")
        if self.wire_dtype != "float64" and self.spec.fraction_bits:
            raise ValueError(f"wire_dtype must be float64 for exact sums, got {self.wire_dtype!r}")

    def statistics(self, features: Tensor, labels: Tensor) -> ClientStatistics:
        """Form what the request asks for, from all of a client's features.

        Parameters
        ----------
        features : Tensor
            (n, d) floating point, on any device.
        labels : Tensor
            (n,) integers in [0, C).

        Raises
        ------
        ValueError
            If shapes disagree, a label is out of range, or a feature is not finite.
        """
        return self.spec.from_features(features, labels, self.num_classes, seed=self.seed)

    def to_content(self) -> RecordDict:
        """Write the content of the request message."""
        return RecordDict({"request": ConfigRecord(to_values(self))})


@reads_requests("for statistics")
def read_statistics_request(msg: Message) -> StatisticsRequest:
    """Read a message of type ``query.statistics``."""
    return from_values(StatisticsRequest, record_of(msg.content, "request", ConfigRecord))


# The reply


@dataclass(frozen=True)
class StatisticsMetrics:
    """Metrics that come with a client's statistics.

    Attributes
    ----------
    num_examples : int
        Samples behind them.
    num_unreadable : int
        Samples that the client has but could not read.
    seconds : float
        Time the client says it took.
    num_suppressed_classes : int
        Classes of which the client has samples, but too few for its policy.
    num_waiting : int
        New samples of which the client has too few to tell of yet.
    made : int
        When a client with samples that wait made these statistics, in seconds since 1970.
    """

    num_examples: int = counted(LARGEST_WHOLE)
    num_unreadable: int = counted(LARGEST_WHOLE)
    seconds: float = measured()
    num_suppressed_classes: int = counted(LARGEST_WHOLE, optional=True)
    num_waiting: int = counted(LARGEST_WHOLE, optional=True)
    made: int = counted(LARGEST_WHOLE, optional=True)


@dataclass(frozen=True)
class About:
    """Origin of the statistics: backbone fingerprint and engine, each "" if the client does not say."""

    backbone_fingerprint: str = optional("")
    engine: str = optional("")

    @property
    def num_bytes(self) -> int:
        """Bytes of the texts."""
        return sum(len(text.encode()) for text in to_values(self).values())


@dataclass(frozen=True, kw_only=True)
class ReceivedStatistics(StatisticsMetrics, About):
    """A reply that passed every check.

    Attributes
    ----------
    statistics : ClientStatistics
        As asked for. Sums keep the wire's dtype, which loses nothing.
    size : WireBytes
        Of them.
    other_bytes : int
        Bytes of the other records.
    """

    statistics: ClientStatistics
    size: WireBytes
    other_bytes: int

    @property
    def wire_bytes(self) -> int:
        """Bytes of the whole reply."""
        return self.other_bytes + self.size.on_wire


def statistics_reply(
    msg: Message,
    statistics: ClientStatistics,
    *,
    backbone_fingerprint: str = "",
    engine: str = "",
    num_unreadable: int = 0,
    num_suppressed_classes: int = 0,
    seconds: float = 0.0,
    request: StatisticsRequest | None = None,
) -> Message:
    """Answer a ``query.statistics`` message.

    Parameters
    ----------
    msg : Message
        The request.
    statistics : ClientStatistics
        What the request asks for. More than asked for (a Gram matrix) is left out.
    backbone_fingerprint : str
        Of the backbone that made the features; the server refuses another than its own.
    engine : str
        What computed them; sent beside a fingerprint.
    num_unreadable : int
        Samples that could not be read.
    num_suppressed_classes : int
        Classes left out of the statistics because of their few samples; sent only if there are any.
    seconds : float
        Time it took.
    request : StatisticsRequest, optional
        What the message holds, if it has been read already.

    Raises
    ------
    ValueError
        If a Gram matrix asked for is missing, or a sum is too large for the wire's dtype.
    RejectedRequest
        If ``msg`` is no request for statistics.
    """
    request = read_statistics_request(msg) if request is None else request
    rows = statistics.rows
    if rows.num_classes != request.num_classes or rows.counts.dtype != torch.int64:
        raise ValueError(
            f"statistics must have the request's {request.num_classes} classes and int64 counts, "
            f"got {rows.num_classes} classes and {rows.counts.dtype} counts"
        )
    num_examples = int(rows.num_examples)
    metrics = to_values(StatisticsMetrics(num_examples, num_unreadable, seconds, num_suppressed_classes))
    about = About(backbone_fingerprint, engine=engine if backbone_fingerprint else "")
    other_bytes = 8 * len(metrics) + about.num_bytes
    record = statistics_record(statistics, request.spec, request.wire_dtype, other_bytes)
    content = RecordDict({"statistics": record, "metrics": MetricRecord(metrics)})
    if backbone_fingerprint:
        content["about"] = ConfigRecord(to_values(about))
    return Message(content, reply_to=msg)


@reads_replies
def read_statistics_reply(
    reply: Message,
    request: StatisticsRequest,
    *,
    feature_dim: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> ReceivedStatistics:
    """Read the statistics of an untrusted reply that passes every check.

    ``feature_dim`` is the backbone's dimension d, where known; ``limits`` are those beyond which no client's statistics
    are.

    Raises
    ------
    RejectedReply
        Saying what was wrong, what is allowed and what came.
    """
    return statistics_of(reply.content, request, feature_dim=feature_dim, limits=limits)


def statistics_of(
    content: RecordDict,
    request: StatisticsRequest,
    *,
    feature_dim: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> ReceivedStatistics:
    """Read the content of a reply as :func:`read_statistics_reply` does, or raise :class:`Malformed`."""
    check_keys("reply", content, {"statistics", "metrics"}, {"about"})
    metrics = from_record(StatisticsMetrics, content, "metrics", MetricRecord)
    about = _read_about(content, request.backbone_fingerprint)
    other_bytes = 8 * len(to_values(metrics)) + about.num_bytes
    record = record_of(content, "statistics", ArrayRecord)
    client, size = read_statistics_record(
        record, request.spec, request.wire_dtype, request.num_classes, feature_dim, limits, other_bytes
    )
    if client.rows.num_examples != metrics.num_examples:
        raise Malformed(
            f"statistics: counts must sum to num-examples {metrics.num_examples}, got {client.rows.num_examples}"
        )
    return ReceivedStatistics(**vars(metrics), **vars(about), statistics=client, size=size, other_bytes=other_bytes)


def _read_about(content: RecordDict, fingerprint: str) -> About:
    """Read what the client says of itself, and refuse features of another backbone."""
    about = from_record(About, content, "about", ConfigRecord) if "about" in content else About()
    found, engine = about.backbone_fingerprint, about.engine
    if engine not in ("", *ENGINES):
        raise Malformed(f"engine: must be one of {', '.join(ENGINES)}, got {engine[:40]!r}")
    if len(found) > MAX_FINGERPRINT_LENGTH:
        raise Malformed(
            f"backbone-fingerprint: must be at most {MAX_FINGERPRINT_LENGTH} characters, got {found[:40]!r}"
        )
    if fingerprint and found != fingerprint:
        raise Malformed(f"backbone: must be the server's, fingerprint {fingerprint[:16]}, got {found[:16] or 'none'}")
    return about
