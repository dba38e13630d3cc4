"""The reply with statistics, and the checks that a stranger's reply must pass.

One ArrayRecord ``statistics-I`` per specification: ``class-ids`` (m,) int64, ``counts`` (m,) int64, ``class-sums``
(m, d), and with a Gram matrix ``gram`` (d (d + 1) / 2,), its upper triangle row by row. One MetricRecord ``metrics``;
it says how many classes the node's policy suppressed if there are any, but neither which nor how many samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.accumulation import pack_upper, unpack_upper
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, WIRE_DTYPES, read_array, to_array
from fedstats_app.wire.reading import Malformed, check_keys, number, reads_replies, record_of, typed, whole
from fedstats_app.wire.statistics_checks import check_gram, check_rows, check_sums
from fedstats_app.wire.statistics_request import StatisticsRequest, read_statistics_request

MAX_FINGERPRINT_LENGTH = 128
SUPPRESSED = "num-suppressed-classes"

# What a client may have at hand.
LocalStatistics: TypeAlias = ClientStatistics | ClassMeanRows | FeatureStatistics


@dataclass(frozen=True)
class ReceivedStatistics:
    """A reply that passed every check.

    Attributes
    ----------
    statistics : tuple of ClientStatistics
        One per specification of the request. Sums keep the wire's dtype, which loses nothing.
    num_examples : int
        Samples behind them.
    num_unreadable : int
        Samples that the client has but could not read.
    num_suppressed_classes : int
        Classes of which the client has samples, but too few for its policy.
    seconds : float
        Time the client says it took.
    row_bytes, gram_bytes : tuple of int
        Bytes on the wire per specification.
    single_row_bytes : tuple of int
        What the rows would have been with one row per class.
    other_bytes : int
        Bytes of the other records.
    """

    statistics: tuple[ClientStatistics, ...]
    num_examples: int
    num_unreadable: int
    num_suppressed_classes: int
    seconds: float
    row_bytes: tuple[int, ...]
    gram_bytes: tuple[int, ...]
    single_row_bytes: tuple[int, ...]
    other_bytes: int

    @property
    def wire_bytes(self) -> int:
        """Bytes of the whole reply."""
        return sum(self.row_bytes) + sum(self.gram_bytes) + self.other_bytes


def statistics_reply(
    msg: Message,
    statistics: LocalStatistics | Sequence[LocalStatistics],
    *,
    backbone_fingerprint: str = "",
    num_unreadable: int = 0,
    num_suppressed_classes: int = 0,
    seconds: float = 0.0,
) -> Message:
    """Return the reply to a ``query.statistics`` message.

    Parameters
    ----------
    msg : Message
        The request.
    statistics : ClientStatistics, ClassMeanRows, FeatureStatistics or a sequence of them
        What the request asks for, one set per specification; a single set may be given bare. More than asked for (a
        Gram matrix) is left out. FeatureStatistics become one row per class.
    backbone_fingerprint : str
        Of the backbone that made the features; the server refuses another than its own.
    num_unreadable : int
        Samples that could not be read.
    num_suppressed_classes : int
        Classes left out of the statistics because of their few samples; sent only if there are any.
    seconds : float
        Time it took.

    Raises
    ------
    ValueError
        If there are not as many sets as specifications, a Gram matrix asked for is missing, or a sum is too large for
        the wire's dtype.
    RejectedRequest
        If ``msg`` is no request for statistics.
    """
    request = read_statistics_request(msg)
    sets = [_as_client_statistics(one) for one in (statistics if isinstance(statistics, Sequence) else [statistics])]
    if len(sets) != len(request.specs):
        raise ValueError(f"the request asks for {len(request.specs)} sets of statistics, got {len(sets)}")
    content = RecordDict()
    for index, (client, spec) in enumerate(zip(sets, request.specs, strict=True)):
        if client.rows.num_classes != request.num_classes or client.rows.counts.dtype != torch.int64:
            raise ValueError(
                f"statistics must have the request's {request.num_classes} classes and int64 counts, "
                f"got {client.rows.num_classes} classes and {client.rows.counts.dtype} counts"
            )
        content[f"statistics-{index}"] = _encode(client, spec, WIRE_DTYPES[request.wire_dtype])
    metrics: dict[str, int | float] = {
        "num-examples": int(sets[0].rows.num_examples),
        "num-unreadable": int(num_unreadable),
        "seconds": float(seconds),
    }
    if num_suppressed_classes:
        metrics[SUPPRESSED] = int(num_suppressed_classes)
    content["metrics"] = MetricRecord({**metrics})
    if backbone_fingerprint:
        content["about"] = ConfigRecord({"backbone-fingerprint": backbone_fingerprint})
    return Message(content, reply_to=msg)


@reads_replies
def read_statistics_reply(
    reply: Message, request: StatisticsRequest, *, feature_dim: int | None = None
) -> ReceivedStatistics:
    """Return the statistics of a reply that passes every check.

    Parameters
    ----------
    reply : Message
        From anybody.
    request : StatisticsRequest
        What was asked for.
    feature_dim : int, optional
        The backbone's feature dimension d, where known.

    Raises
    ------
    RejectedReply
        Saying what was wrong, what is allowed and what came.
    """
    content = reply.content
    names = [f"statistics-{index}" for index in range(len(request.specs))]
    check_keys("reply", content, {*names, "metrics"}, {"about"})
    metrics = record_of(content, "metrics", MetricRecord, {"num-examples", "num-unreadable", "seconds"}, {SUPPRESSED})
    num_examples = whole(metrics, "num-examples")
    fingerprint_bytes = _check_fingerprint(content, request)
    statistics, row_bytes, single_row_bytes, gram_bytes = [], [], [], []
    for name, spec in zip(names, request.specs, strict=True):
        record = record_of(content, name, ArrayRecord)
        dim = spec.feature_map.output_dim(feature_dim) if feature_dim is not None else None
        client = _decode(record, spec, request, dim)
        if client.rows.num_examples != num_examples:
            raise Malformed(f"{name}: counts must sum to num-examples {num_examples}, got {client.rows.num_examples}")
        statistics.append(client)
        gram_bytes.append(len(record["gram"].data) if spec.gram else 0)
        row_bytes.append(sum(len(array.data) for array in record.values()) - gram_bytes[-1])
        repeated = len(client.rows) - len(torch.unique(client.rows.class_ids))
        single_row_bytes.append(row_bytes[-1] - repeated * _bytes_per_row(client))
    return ReceivedStatistics(
        tuple(statistics),
        num_examples,
        whole(metrics, "num-unreadable"),
        whole({SUPPRESSED: 0, **metrics}, SUPPRESSED),
        number(metrics, "seconds"),
        tuple(row_bytes),
        tuple(gram_bytes),
        tuple(single_row_bytes),
        8 * len(metrics) + fingerprint_bytes,
    )


def _bytes_per_row(client: ClientStatistics) -> int:
    rows = client.rows
    sums = rows.class_sums
    return rows.class_ids.element_size() + rows.counts.element_size() + rows.feature_dim * sums.element_size()


def _as_client_statistics(statistics: LocalStatistics) -> ClientStatistics:
    if isinstance(statistics, ClientStatistics):
        return statistics
    if isinstance(statistics, ClassMeanRows):
        return ClientStatistics(statistics)
    ids = statistics.present.nonzero().squeeze(1)
    rows = ClassMeanRows(
        ids,
        statistics.class_counts[ids],
        num_classes=statistics.num_classes,
        class_sums=statistics.class_sums[ids],
    )
    return ClientStatistics(rows, statistics.gram)


def _encode(client: ClientStatistics, spec: StatisticsSpec, dtype: torch.dtype) -> ArrayRecord:
    record = ArrayRecord(
        {
            "class-ids": to_array(client.rows.class_ids),
            "counts": to_array(client.rows.counts),
            "class-sums": to_array(_cast(client.rows.class_sums, dtype)),
        }
    )
    if spec.gram:
        if client.gram is None:
            raise ValueError("the request asks for a Gram matrix, got statistics without one")
        record["gram"] = to_array(_cast(pack_upper(client.gram), dtype))
    return record


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    cast = values.to(dtype)
    if not bool(torch.isfinite(cast).all()):
        raise ValueError(f"statistics must fit {dtype}, got values up to {float(values.abs().max()):.3g}")
    return cast


def _check_fingerprint(content: RecordDict, request: StatisticsRequest) -> int:
    """Refuse features of another backbone; return the bytes of the fingerprint."""
    fingerprint = ""
    if "about" in content:
        about = record_of(content, "about", ConfigRecord, {"backbone-fingerprint"})
        fingerprint = typed(about, "backbone-fingerprint", str)
        if len(fingerprint) > MAX_FINGERPRINT_LENGTH:
            raise Malformed(
                f"backbone-fingerprint: must be at most {MAX_FINGERPRINT_LENGTH} characters, got {fingerprint[:40]!r}"
            )
    if request.backbone_fingerprint and fingerprint != request.backbone_fingerprint:
        raise Malformed(
            f"backbone: must be the server's, fingerprint {request.backbone_fingerprint[:16]}, "
            f"got {fingerprint[:16] or 'none'}"
        )
    return len(fingerprint)


def _decode(
    record: ArrayRecord, spec: StatisticsSpec, request: StatisticsRequest, feature_dim: int | None
) -> ClientStatistics:
    dtype = WIRE_DTYPES[request.wire_dtype]
    check_keys("statistics", record, {"class-ids", "counts", "class-sums"} | ({"gram"} if spec.gram else set()))
    ids = read_array(record, "class-ids", torch.int64, (range(request.num_classes * spec.means_per_class + 1),))
    counts = read_array(record, "counts", torch.int64, (len(ids),))
    check_rows(ids, counts, request.num_classes, spec.means_per_class)
    dims = range(1, MAX_FEATURE_DIM + 1) if feature_dim is None else feature_dim
    sums = read_array(record, "class-sums", dtype, (len(ids), dims))
    rows = ClassMeanRows(ids, counts, num_classes=request.num_classes, class_sums=sums)
    check_sums(rows)
    if not spec.gram:
        return ClientStatistics(rows)
    dim = rows.feature_dim
    gram = unpack_upper(read_array(record, "gram", dtype, (dim * (dim + 1) // 2,)), dim).to(torch.float64)
    check_gram(gram, rows, torch.finfo(dtype).eps)
    return ClientStatistics(rows, gram)
