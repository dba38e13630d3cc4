"""What is trained, and how: all that whoever trains or evaluates a model must know besides its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedstats_app.settings.option import as_text
from fedstats_app.statistics import FeatureMap, IdentityMap, feature_map_from_dict
from fedstats_app.statistics.sample_request import SampleRequest
from fedstats_app.training.training_options import BatchNorm, LocalOptions

Tune = Literal["full", "probe", "features"]


@dataclass(frozen=True)
class TrainingRequest(SampleRequest):
    """What a client must know to train or to evaluate a model, besides the model.

    Attributes
    ----------
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
    """

    tune: Tune = "probe"
    options: LocalOptions = field(default_factory=LocalOptions)
    temperature: float = 1.0
    tune_bias: bool = True
    batch_norm: BatchNorm = "frozen"
    feature_map: FeatureMap = field(
        default_factory=IdentityMap, metadata=as_text(lambda one: one.to_dict(), feature_map_from_dict)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (("tune", get_args(Tune)), ("batch_norm", get_args(BatchNorm))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")
