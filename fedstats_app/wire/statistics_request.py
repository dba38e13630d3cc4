"""The request for statistics: one ConfigRecord named ``request`` in a message of type ``query.statistics``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.statistics import ClientStatistics, StatisticsSpec, feature_map_from_dict
from fedstats_app.wire.arrays import WIRE_DTYPES
from fedstats_app.wire.errors import RejectedRequest

QUERY_STATISTICS = "query.statistics"

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_CLASSES = 1_000_000
MAX_MEANS_PER_CLASS = 10_000
MAX_SPECS = 16


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
        if self.wire_dtype not in WIRE_DTYPES:
            raise ValueError(f"wire_dtype must be one of {sorted(WIRE_DTYPES)}, got {self.wire_dtype!r}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must name all {self.num_classes} classes, got {len(self.class_names)}")
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
        specs = [
            {
                "gram": spec.gram,
                "means-per-class": spec.means_per_class,
                "feature-map": spec.feature_map.to_dict(),
            }
            for spec in self.specs
        ]
        record = ConfigRecord(
            {
                "num-classes": self.num_classes,
                "specifications": json.dumps(specs),
                "wire-dtype": self.wire_dtype,
                "seed": self.seed,
                "server-round": self.server_round,
                "backbone-fingerprint": self.backbone_fingerprint,
                "class-names": list(self.class_names),
                "holdout": self.holdout,
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
        specs = tuple(
            StatisticsSpec(
                gram=bool(spec["gram"]),
                means_per_class=int(spec["means-per-class"]),
                feature_map=feature_map_from_dict(spec["feature-map"]),
            )
            for spec in json.loads(str(record["specifications"]))
        )
        return StatisticsRequest(
            num_classes=int(record["num-classes"]),  # type: ignore[arg-type]
            specs=specs,
            wire_dtype=str(record["wire-dtype"]),
            seed=int(record["seed"]),  # type: ignore[arg-type]
            server_round=int(record["server-round"]),  # type: ignore[arg-type]
            backbone_fingerprint=str(record["backbone-fingerprint"]),
            class_names=tuple(record["class-names"]),  # type: ignore[arg-type]
            holdout=float(record["holdout"]),  # type: ignore[arg-type]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedRequest(f"not a request for statistics: {type(error).__name__}: {error}") from error
