"""What a node must know once to take part in FedMeZO: the model, what of it is tuned, and how it is probed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from fedstats_app.training.request import TrainingRequest
from fedstats_app.training.zeroth_order.directions import Directions, Distribution

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
Dtype = Literal["float32", "float64", "bfloat16"]

MAX_DIRECTIONS = 1024


@dataclass(frozen=True)
class MezoSetup:
    """All that is decided before the first round.

    Attributes
    ----------
    request : TrainingRequest
        The model: ``tune`` is "probe" where the head is tuned on the frozen backbone's features, else "full".
    tuned : str
        What is tuned, as :func:`fedstats_app.training.zeroth_order.selection.tuned_names` takes it.
    epsilon : float
        Distance of the probes.
    num_directions : int
        Probed in a round.
    distribution : {"rademacher", "gaussian"}
        Of the directions.
    dtype : {"float32", "float64", "bfloat16"}
        Of the parameters.
    batch_size : int
        0: all samples of a client are one batch, whatever the partition; else so many, drawn by (seed, client, round).
    own_batches : bool
        Whether each direction of a round draws a batch of its own (algorithm 3 of the thesis).
    lora_rank : int
        Of the adapters, where ``tuned`` is "lora"; else it has no meaning.
    lora_alpha : float
        Their scale is alpha / rank.
    """

    request: TrainingRequest
    tuned: str = field(default="head", metadata={"key": "mezo-tune"})
    epsilon: float = 1e-3
    num_directions: int = 1
    distribution: Distribution = "rademacher"
    dtype: Dtype = "float32"
    batch_size: int = field(default=0, metadata={"key": "mezo-batch-size"})
    own_batches: bool = field(default=False, metadata={"key": "mezo-own-batches"})
    lora_rank: int = 8
    lora_alpha: float = 16.0

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf or not 0.0 < self.lora_alpha < math.inf:
            raise ValueError(
                f"epsilon and lora_alpha must be positive and finite, got {self.epsilon} and {self.lora_alpha}"
            )
        if not 1 <= self.num_directions <= MAX_DIRECTIONS or self.lora_rank < 1 or self.batch_size < 0:
            raise ValueError(
                f"num_directions must lie in [1, {MAX_DIRECTIONS}], lora_rank be at least 1 and batch_size at least 0, "
                f"got {self.num_directions}, {self.lora_rank} and {self.batch_size}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {self.dtype!r}")
        if self.request.tune != ("probe" if self.tuned == "head" else "full"):
            raise ValueError(f"tune does not fit what is tuned, got {self.request.tune!r} for {self.tuned!r}")
        Directions(self.distribution)
