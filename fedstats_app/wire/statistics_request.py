"""The request for statistics: one ConfigRecord named ``request`` in a message of type ``query.statistics``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.settings.option import as_text
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.statistics.specification import SampleRequest
from fedstats_app.wire.arrays import NUMBER_BYTES
from fedstats_app.wire.reading import from_values, reads_requests, record_of, to_values

QUERY_STATISTICS = "query.statistics"

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_MEANS_PER_CLASS = 10_000
MAX_SPECS = 16
# A Gram matrix of this size is 8 GiB in float64.
MAX_GRAM_DIM = 32_768


def _read_specs(specs: object) -> tuple[StatisticsSpec, ...]:
    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise TypeError("must be a list of objects")
    return tuple(StatisticsSpec.from_dict(spec) for spec in specs)


def _write_specs(specs: Sequence[StatisticsSpec]) -> list[dict[str, object]]:
    return [spec.to_dict() for spec in specs]


@dataclass(frozen=True)
class StatisticsRequest(SampleRequest):
    """What the server asks a client for.

    Attributes
    ----------
    specs : tuple of StatisticsSpec
        One set of statistics per specification, in this order; the seed draws which samples share a mean where one asks
        for several per class.
    wire_dtype : str
        One of :data:`fedstats_app.wire.arrays.NUMBER_BYTES`, for sums and Gram matrices.
    server_round : int
        1 for the first.
    """

    specs: tuple[StatisticsSpec, ...] = field(
        default=(StatisticsSpec(),), metadata=as_text(_write_specs, _read_specs, "specifications")
    )
    wire_dtype: str = "float32"
    server_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.specs) <= MAX_SPECS:
            raise ValueError(f"a request takes 1 to {MAX_SPECS} specifications, got {len(self.specs)}")
        if any(spec.means_per_class > MAX_MEANS_PER_CLASS for spec in self.specs):
            raise ValueError(f"means_per_class must be at most {MAX_MEANS_PER_CLASS}")
        # A mapped dimension does not depend on the backbone's, but for the identity, whose Gram matrix is what it is.
        # A factor of the scatter of many samples takes one too.
        square = (spec for spec in self.specs if spec.gram or spec.scatter)
        widest = max((spec.feature_map.output_dim(1) for spec in square), default=1)
        if widest > MAX_GRAM_DIM:
            raise ValueError(f"a Gram matrix takes at most {MAX_GRAM_DIM} mapped features, got {widest}")
        if self.wire_dtype not in NUMBER_BYTES:
            raise ValueError(f"wire_dtype must be one of {', '.join(NUMBER_BYTES)}, got {self.wire_dtype!r}")

    @property
    def num_mapped_features(self) -> int:
        """Features of all specifications together; those of the backbone itself are not known here, and count once."""
        return sum(spec.feature_map.output_dim(1) for spec in self.specs)

    def statistics(self, features: Tensor, labels: Tensor) -> tuple[ClientStatistics, ...]:
        """Return what the request asks for, from all of a client's features.

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
        return tuple(spec.from_features(features, labels, self.num_classes, seed=self.seed) for spec in self.specs)

    def to_content(self) -> RecordDict:
        """Return the content of the request message."""
        return RecordDict({"request": ConfigRecord(to_values(self))})


@reads_requests("for statistics")
def read_statistics_request(msg: Message) -> StatisticsRequest:
    """Return the request in a message of type ``query.statistics``.

    Raises
    ------
    RejectedRequest
        If a key is missing or a value is not allowed.
    """
    return from_values(StatisticsRequest, record_of(msg.content, "request", ConfigRecord))
