"""Requests to train, Flower's own ``train`` messages, and to evaluate a model that is being trained.

The request is what Flower's FedAvg family sends, an ArrayRecord ``arrays`` (what is trained) and a ConfigRecord
``config`` (everything else that a client must know: it keeps nothing between messages), and an ArrayRecord ``fixed``
with what the model has besides and is not trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstats_app.statistics import FeatureMap, IdentityMap, feature_map_from_dict
from fedstats_app.training.options import LocalOptions
from fedstats_app.wire.arrays import to_array
from fedstats_app.wire.errors import RejectedRequest
from fedstats_app.wire.statistics_request import MAX_CLASSES

TRAIN = "train"
EVALUATE_MODEL = "evaluate.model"

Tune = Literal["full", "probe", "features"]
BatchNorm = Literal["frozen", "kept", "averaged"]

# Flower's FedProx puts this one into the config itself.
PROXIMAL_MU = "proximal-mu"


@dataclass(frozen=True)
class TrainingRequest:
    """What a client must know to train or to evaluate a model, besides the model.

    Attributes
    ----------
    num_classes : int
        C.
    tune : {"full", "probe", "features"}
        What is trained: backbone and head, the head on the frozen backbone's features, or the backbone under a fixed
        head.
    options : LocalOptions
        Of the client's own optimiser. Its ``proximal_mu`` is not sent: Flower's FedProx does that.
    temperature : float
        Logits are divided by it, in training and in evaluation.
    tune_bias : bool
        Whether the head's bias is trained.
    batch_norm : {"frozen", "kept", "averaged"}
        As :class:`fedstats_app.training.TunedModel`.
    feature_map : FeatureMap
        Between backbone and head.
    seed : int
        Draws the batches, with the client and the round, and which samples are held out.
    holdout : float
        Share of its samples that a client keeps for evaluation, 0 for none.
    backbone_fingerprint : str
        Of the backbone to start from, or "".
    class_names : tuple of str
        The classes in the order of their ids, or empty where ids are agreed on otherwise.
    """

    num_classes: int
    tune: Tune = "probe"
    options: LocalOptions = field(default_factory=LocalOptions)
    temperature: float = 1.0
    tune_bias: bool = True
    batch_norm: BatchNorm = "frozen"
    feature_map: FeatureMap = field(default_factory=IdentityMap)
    seed: int = 0
    holdout: float = 0.0
    backbone_fingerprint: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(f"num_classes must lie in [1, {MAX_CLASSES}], got {self.num_classes}")
        if self.tune not in get_args(Tune):
            raise ValueError(f"tune must be one of {', '.join(get_args(Tune))}, got {self.tune!r}")
        if self.batch_norm not in get_args(BatchNorm):
            raise ValueError(f"batch_norm must be one of {', '.join(get_args(BatchNorm))}, got {self.batch_norm!r}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")
        if not 0.0 <= self.holdout < 1.0:
            raise ValueError(f"holdout must lie in [0, 1), got {self.holdout}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must name all {self.num_classes} classes, got {len(self.class_names)}")

    def to_config(self) -> ConfigRecord:
        """Return the request as Flower's strategies take it, for their ``train_config``."""
        return ConfigRecord(
            {
                "num-classes": self.num_classes,
                "tune": self.tune,
                "local-epochs": self.options.epochs,
                "batch-size": self.options.batch_size,
                "learning-rate": self.options.learning_rate,
                "momentum": self.options.momentum,
                "weight-decay": self.options.weight_decay,
                "flip": self.options.flip,
                "temperature": float(self.temperature),
                "tune-bias": self.tune_bias,
                "batch-norm": self.batch_norm,
                "feature-map": json.dumps(self.feature_map.to_dict()),
                "seed": self.seed,
                "holdout": float(self.holdout),
                "backbone-fingerprint": self.backbone_fingerprint,
                "class-names": list(self.class_names),
            }
        )


@dataclass(frozen=True)
class TrainingTask:
    """A request as a client reads it.

    Attributes
    ----------
    request : TrainingRequest
        With the proximal term of FedProx, if any, in its options.
    server_round : int
        The absolute round.
    trained, fixed : dict
        Tensors by name: what is trained, and what the head has besides (``head.weight``, ``head.bias``).
    """

    request: TrainingRequest
    server_round: int
    trained: dict[str, Tensor]
    fixed: dict[str, Tensor]


def read_training_task(msg: Message) -> TrainingTask:
    """Return what a message of type ``train`` or ``evaluate.model`` asks for.

    Raises
    ------
    RejectedRequest
        If a key is missing or a value is not allowed.
    """
    try:
        config = msg.content["config"]
        if not isinstance(config, ConfigRecord):
            raise TypeError(f"config must be a ConfigRecord, got {type(config).__name__}")
        request = request_of(dict(config))
        trained, fixed = (tensors_of(msg.content, name) for name in ("arrays", "fixed"))
        return TrainingTask(request, int(str(config["server-round"])), trained, fixed)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RejectedRequest(f"not a request to train: {type(error).__name__}: {error!s:.200}") from error


def request_of(values: Mapping[str, Any]) -> TrainingRequest:
    """Return the request whose :meth:`TrainingRequest.to_config` is among some values.

    Raises
    ------
    KeyError, TypeError, ValueError, RecursionError
        If one is missing or not allowed.
    """
    return TrainingRequest(
        num_classes=int(values["num-classes"]),
        tune=values["tune"],
        options=LocalOptions(
            epochs=int(values["local-epochs"]),
            batch_size=int(values["batch-size"]),
            learning_rate=float(values["learning-rate"]),
            momentum=float(values["momentum"]),
            weight_decay=float(values["weight-decay"]),
            proximal_mu=float(values.get(PROXIMAL_MU, 0.0)),
            flip=bool(values["flip"]),
        ),
        temperature=float(values["temperature"]),
        tune_bias=bool(values["tune-bias"]),
        batch_norm=values["batch-norm"],
        feature_map=feature_map_from_dict(json.loads(str(values["feature-map"]))),
        seed=int(values["seed"]),
        holdout=float(values["holdout"]),
        backbone_fingerprint=str(values["backbone-fingerprint"]),
        class_names=tuple(str(name) for name in values["class-names"]),
    )


def tensors_of(content: RecordDict, name: str) -> dict[str, Tensor]:
    """Return the tensors of an ArrayRecord of a message by name.

    Raises
    ------
    KeyError, TypeError
        If there is no such record, or it is of another kind.
    """
    record = content[name]
    if not isinstance(record, ArrayRecord):
        raise TypeError(f"{name} must be an ArrayRecord, got {type(record).__name__}")
    return {key: torch.from_numpy(array.numpy()) for key, array in record.items()}


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors by name as a record, in the order given."""
    return ArrayRecord({name: to_array(tensor) for name, tensor in tensors.items()})
