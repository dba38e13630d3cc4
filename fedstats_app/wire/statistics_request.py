"""The request for statistics: one ConfigRecord named ``request`` in a message of type ``query.statistics``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.wire.arrays import WIRE_DTYPES
from fedstats_app.wire.errors import RejectedRequest

QUERY_STATISTICS = "query.statistics"

Value = TypeVar("Value")

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_CLASSES = 1_000_000
MAX_MEANS_PER_CLASS = 10_000
MAX_SPECS = 16
# A Gram matrix of this size is 8 GiB in float64.
MAX_GRAM_DIM = 32_768
# What the specifications of 16 methods need is about 2,000 characters.
MAX_SPECIFICATIONS_LENGTH = 100_000


@dataclass(frozen=True)
class StatisticsRequest:
    """What the server asks a client for.

    Attributes
    ----------
    num_classes : int
        C.
    specs : tuple of StatisticsSpec
        One set of statistics per specification, in this order.
    wire_dtype : str
        "float32" or "float64", for sums and Gram matrices.
    seed : int
        Draws which samples share a mean where several means per class are asked for.
    server_round : int
        1 for the first.
    backbone_fingerprint : str
        The server's backbone and transform, or "" if it has none to compare with.
    class_names : tuple of str
        The classes in the order of their ids, or empty where ids are agreed on otherwise.
    holdout : float
        Share of its samples that a client keeps for evaluation, 0 for none.
    """

    num_classes: int
    specs: tuple[StatisticsSpec, ...] = (StatisticsSpec(),)
    wire_dtype: str = "float32"
    seed: int = 0
    server_round: int = 1
    backbone_fingerprint: str = ""
    class_names: tuple[str, ...] = ()
    holdout: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(f"num_classes must lie in [1, {MAX_CLASSES}], got {self.num_classes}")
        if not 1 <= len(self.specs) <= MAX_SPECS:
            raise ValueError(f"a request takes 1 to {MAX_SPECS} specifications, got {len(self.specs)}")
        if any(spec.means_per_class > MAX_MEANS_PER_CLASS for spec in self.specs):
            raise ValueError(f"means_per_class must be at most {MAX_MEANS_PER_CLASS}")
        # A mapped dimension does not depend on the backbone's, but for the identity, whose Gram matrix is what it is.
        widest = max((spec.feature_map.output_dim(1) for spec in self.specs if spec.gram), default=1)
        if widest > MAX_GRAM_DIM:
            raise ValueError(f"a Gram matrix takes at most {MAX_GRAM_DIM} mapped features, got {widest}")
        if self.wire_dtype not in WIRE_DTYPES:
            raise ValueError(f"wire_dtype must be one of {sorted(WIRE_DTYPES)}, got {self.wire_dtype!r}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must name all {self.num_classes} classes, got {len(self.class_names)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if not 0.0 <= self.holdout < 1.0:
            raise ValueError(f"holdout must lie in [0, 1), got {self.holdout}")

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
        record = ConfigRecord(
            {
                "num-classes": self.num_classes,
                "specifications": json.dumps([spec.to_dict() for spec in self.specs]),
                "wire-dtype": self.wire_dtype,
                "seed": self.seed,
                "server-round": self.server_round,
                "backbone-fingerprint": self.backbone_fingerprint,
                "class-names": list(self.class_names),
                "holdout": float(self.holdout),
            }
        )
        return RecordDict({"request": record})


def read_statistics_request(msg: Message) -> StatisticsRequest:
    """Return the request in a message of type ``query.statistics``.

    Raises
    ------
    RejectedRequest
        If a key is missing or a value is not allowed.
    """
    try:
        record = msg.content["request"]
        if not isinstance(record, ConfigRecord):
            raise TypeError(f"request must be a ConfigRecord, got {type(record).__name__}")
        class_names = _typed(record, "class-names", list)
        if not all(isinstance(name, str) for name in class_names):
            raise TypeError("class-names must be strings")
        return StatisticsRequest(
            num_classes=_typed(record, "num-classes", int),
            specs=_read_specs(_typed(record, "specifications", str)),
            wire_dtype=_typed(record, "wire-dtype", str),
            seed=_typed(record, "seed", int),
            server_round=_typed(record, "server-round", int),
            backbone_fingerprint=_typed(record, "backbone-fingerprint", str),
            class_names=tuple(class_names),
            holdout=_typed(record, "holdout", float),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RejectedRequest(f"not a request for statistics: {type(error).__name__}: {error!s:.200}") from error


def _read_specs(text: str) -> tuple[StatisticsSpec, ...]:
    if len(text) > MAX_SPECIFICATIONS_LENGTH:
        raise ValueError(f"specifications take at most {MAX_SPECIFICATIONS_LENGTH} characters, got {len(text)}")
    specs = json.loads(text)
    if not isinstance(specs, list) or not all(isinstance(spec, dict) for spec in specs):
        raise TypeError("specifications must be a list of objects")
    return tuple(StatisticsSpec.from_dict(spec) for spec in specs)


def _typed(values: Mapping[str, Any], key: str, kind: type[Value]) -> Value:
    """Return a value of exactly this type: 1.5 is no count and True no seed."""
    value = values[key]
    if type(value) is not kind:
        raise TypeError(f"{key} must be of type {kind.__name__}, got {value!r:.60}")
    return value
