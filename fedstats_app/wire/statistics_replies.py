"""The reply with statistics, and the checks that a stranger's reply must pass.

One ArrayRecord ``statistics-I`` per specification (:mod:`fedstats_app.wire.statistics_records`). One MetricRecord
``metrics``; it says how many classes the node's policy suppressed if there are any, but neither which nor how many
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstats_app.backbones.engine import ENGINES
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics
from fedstats_app.training.limits import MAX_CLIENT_NAME
from fedstats_app.wire.client_name import ABOUT, CLIENT_NAME, ENGINE
from fedstats_app.wire.reading import Malformed, check_keys, number, reads_replies, record_of, typed, whole
from fedstats_app.wire.statistics_checks import Limits
from fedstats_app.wire.statistics_records import (
    GRAM_KEYS,
    ROW_KEYS,
    SCATTER_KEYS,
    bytes_per_row,
    num_bytes,
    read_statistics_record,
    scatter_bytes_of,
    statistics_record,
    with_scatter,
)
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
    scatter_bytes : tuple of int
        Of the factor of the scatter; where that was made of the Gram matrix, what it would have taken on the wire.
    single_row_bytes : tuple of int
        What the rows would have been with one row per class.
    other_bytes : int
        Bytes of the other records.
    wire_bytes : int
        Bytes of the whole reply.
    client_name : str
        By which the client is known again when its data have changed; "" for none.
    engine : str
        What computed the features, as the client says; "" where it does not.
    """

    statistics: tuple[ClientStatistics, ...]
    num_examples: int
    num_unreadable: int
    num_suppressed_classes: int
    seconds: float
    row_bytes: tuple[int, ...]
    gram_bytes: tuple[int, ...]
    scatter_bytes: tuple[int, ...]
    single_row_bytes: tuple[int, ...]
    other_bytes: int
    wire_bytes: int
    client_name: str = ""
    engine: str = ""


def statistics_reply(
    msg: Message,
    statistics: LocalStatistics | Sequence[LocalStatistics],
    *,
    backbone_fingerprint: str = "",
    engine: str = "",
    num_unreadable: int = 0,
    num_suppressed_classes: int = 0,
    seconds: float = 0.0,
    request: StatisticsRequest | None = None,
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
    engine : str
        What computed them; sent beside a fingerprint.
    num_unreadable : int
        Samples that could not be read.
    num_suppressed_classes : int
        Classes left out of the statistics because of their few samples; sent only if there are any.
    seconds : float
        Time it took.
    request : StatisticsRequest, optional
        What the message holds, from whoever has read it already.

    Raises
    ------
    ValueError
        If there are not as many sets as specifications, a Gram matrix asked for is missing, or a sum is too large for
        the wire's dtype.
    RejectedRequest
        If ``msg`` is no request for statistics.
    """
    request = read_statistics_request(msg) if request is None else request
    sets = [_as_client_statistics(one) for one in (statistics if isinstance(statistics, Sequence) else [statistics])]
    if len(sets) != len(request.specs):
        raise ValueError(f"the request asks for {len(request.specs)} sets of statistics, got {len(sets)}")
    for client in sets:
        if client.rows.num_classes != request.num_classes or client.rows.counts.dtype != torch.int64:
            raise ValueError(
                f"statistics must have the request's {request.num_classes} classes and int64 counts, "
                f"got {client.rows.num_classes} classes and {client.rows.counts.dtype} counts"
            )
    metrics: dict[str, int | float] = {
        "num-examples": int(sets[0].rows.num_examples),
        "num-unreadable": int(num_unreadable),
        "seconds": float(seconds),
    }
    if num_suppressed_classes:
        metrics[SUPPRESSED] = int(num_suppressed_classes)
    about = {"backbone-fingerprint": backbone_fingerprint, ENGINE: engine} if backbone_fingerprint else {}
    other_bytes = 8 * len(metrics) + sum(map(len, about.values()))
    content = RecordDict()
    for index, (client, spec) in enumerate(zip(sets, request.specs, strict=True)):
        record = statistics_record(client, spec, request.wire_dtype, other_bytes)
        content[f"statistics-{index}"] = record
    content["metrics"] = MetricRecord({**metrics})
    if about:
        content[ABOUT] = ConfigRecord({key: value for key, value in about.items() if value})
    return Message(content, reply_to=msg)


@reads_replies
def read_statistics_reply(
    reply: Message,
    request: StatisticsRequest,
    *,
    feature_dim: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
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
    limits : Limits
        Beyond which nobody's statistics are.

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
    fingerprint, client_name, engine = _about(content)
    _check_fingerprint(fingerprint, request)
    other_bytes = 8 * len(metrics) + len(fingerprint) + len(client_name.encode()) + len(engine)
    statistics, row_bytes, single_row_bytes, gram_bytes, scatter_bytes = [], [], [], [], []
    wire_bytes = other_bytes
    for name, spec in zip(names, request.specs, strict=True):
        record = record_of(content, name, ArrayRecord)
        client = read_statistics_record(record, spec, request, feature_dim, limits)
        if client.rows.num_examples != num_examples:
            raise Malformed(f"{name}: counts must sum to num-examples {num_examples}, got {client.rows.num_examples}")
        of_rows, of_gram, of_scatter = (num_bytes(record, keys) for keys in (ROW_KEYS, GRAM_KEYS, SCATTER_KEYS))
        wire_bytes += of_rows + of_gram + of_scatter  # there are no other arrays
        row_bytes.append(of_rows)
        gram_bytes.append(of_gram)
        scatter_bytes.append(of_scatter)
        if spec.gram and spec.scatter is not None:
            client = with_scatter(client, spec.scatter, row_bytes[-1] + other_bytes)
            scatter_bytes[-1] = scatter_bytes_of(spec.scatter, client)
        statistics.append(client)
        repeated = len(client.rows) - len(set(client.rows.class_ids.tolist()))
        single_row_bytes.append(row_bytes[-1] - repeated * bytes_per_row(client.rows, request.wire_dtype))
    return ReceivedStatistics(
        tuple(statistics),
        num_examples,
        whole(metrics, "num-unreadable"),
        whole(metrics, SUPPRESSED) if SUPPRESSED in metrics else 0,
        number(metrics, "seconds"),
        tuple(row_bytes),
        tuple(gram_bytes),
        tuple(scatter_bytes),
        tuple(single_row_bytes),
        other_bytes,
        wire_bytes,
        client_name,
        engine,
    )


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


def _about(content: RecordDict) -> tuple[str, str, str]:
    """Return the fingerprint of the backbone, the client's name and its engine, each "" where there is none."""
    if ABOUT not in content:
        return "", "", ""
    keys = ("backbone-fingerprint", CLIENT_NAME, ENGINE)
    about = record_of(content, ABOUT, ConfigRecord, set(), {*keys})
    fingerprint, name, engine = (typed(about, key, str) if key in about else "" for key in keys)
    if engine not in ("", *ENGINES):
        raise Malformed(f"{ENGINE}: must be one of {', '.join(ENGINES)}, got {engine[:40]!r}")
    if len(fingerprint) > MAX_FINGERPRINT_LENGTH:
        raise Malformed(
            f"backbone-fingerprint: must be at most {MAX_FINGERPRINT_LENGTH} characters, got {fingerprint[:40]!r}"
        )
    if len(name) > MAX_CLIENT_NAME or not name.isprintable():
        raise Malformed(f"{CLIENT_NAME}: must be at most {MAX_CLIENT_NAME} printable characters, got {name[:40]!r}")
    return fingerprint, name, engine


def _check_fingerprint(fingerprint: str, request: StatisticsRequest) -> None:
    """Refuse features of another backbone."""
    if request.backbone_fingerprint and fingerprint != request.backbone_fingerprint:
        raise Malformed(
            f"backbone: must be the server's, fingerprint {request.backbone_fingerprint[:16]}, "
            f"got {fingerprint[:16] or 'none'}"
        )
