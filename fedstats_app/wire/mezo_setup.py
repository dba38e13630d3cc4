"""What a node must know once to take part in FedMeZO: the model, what of it is tuned, and how it is probed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from flwr.app import ConfigRecord

from fedstats_app.training.zeroth_order.directions import Directions, Distribution
from fedstats_app.training.zeroth_order.log import SeedPool
from fedstats_app.wire.training import TrainingRequest, request_of

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
Dtype = Literal["float32", "float64", "bfloat16"]

MAX_DIRECTIONS = 1024
MAX_POOL = 2**20


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
    lora_rank : int
        Of the adapters, where ``tuned`` is "lora"; else it has no meaning.
    lora_alpha : float
        Their scale is alpha / rank.
    pool : SeedPool or None
        A finite pool of seeds.
    """

    request: TrainingRequest
    tuned: str = "head"
    epsilon: float = 1e-3
    num_directions: int = 1
    distribution: Distribution = "rademacher"
    dtype: Dtype = "float32"
    batch_size: int = 0
    lora_rank: int = 8
    lora_alpha: float = 16.0
    pool: SeedPool | None = field(default=None)

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
        if self.pool is not None and self.pool.size > MAX_POOL:
            raise ValueError(f"a pool must have at most {MAX_POOL} seeds, got {self.pool.size}")
        if self.pool is not None and self.dtype == "bfloat16":
            raise ValueError("a finite pool of seeds needs float32 or float64, got bfloat16")
        Directions(self.distribution)

    def to_config(self) -> ConfigRecord:
        """Return the setup as a record."""
        config = self.request.to_config()
        config.update(
            {
                "mezo-tune": self.tuned,
                "epsilon": float(self.epsilon),
                "num-directions": self.num_directions,
                "distribution": self.distribution,
                "dtype": self.dtype,
                "mezo-batch-size": self.batch_size,
                "lora-rank": self.lora_rank,
                "lora-alpha": float(self.lora_alpha),
                "pool": [] if self.pool is None else [self.pool.first, self.pool.size],
            }
        )
        return config


def read_setup(record: Mapping[str, Any]) -> MezoSetup:
    """Return the setup that a record holds, or what was kept of one.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a key is missing or a value is not allowed.
    """
    values = dict(record)
    pool = values["pool"]
    return MezoSetup(
        request_of(values),
        tuned=str(values["mezo-tune"]),
        epsilon=float(values["epsilon"]),
        num_directions=int(values["num-directions"]),
        distribution=values["distribution"],
        dtype=values["dtype"],
        batch_size=int(values["mezo-batch-size"]),
        lora_rank=int(values["lora-rank"]),
        lora_alpha=float(values["lora-alpha"]),
        pool=SeedPool(int(pool[0]), int(pool[1])) if pool else None,
    )
