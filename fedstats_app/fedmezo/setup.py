"""Setup of a training by FedMeZO, and the model that every node builds from it, to the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedstats_app.fedmezo.directions import Directions, Distribution
from fedstats_app.fedmezo.perturbation import tuned_names
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TrainingRequest, TunedModel

MAX_DIRECTIONS = 1024


@dataclass(frozen=True)
class MezoSetup:
    """Settings that are fixed before the first round.

    Attributes
    ----------
    request : TrainingRequest
        The model: ``tune`` is "probe" where the head is tuned on the frozen backbone's features, else "full".
    tuned : str
        Tuned part, see :func:`fedstats_app.fedmezo.perturbation.tuned_names`.
    epsilon : float
        Distance of the probes.
    num_directions : int
        Probed in a round.
    distribution : {"rademacher", "gaussian"}
        Of the directions.
    batch_size : int
        Samples that each direction of a round draws by (seed, client, round), as in algorithm 3 of the thesis; 0 for
        all samples of a client, whatever the partition.
    """

    request: TrainingRequest
    tuned: str = field(default="head", metadata={"key": "mezo-tune"})
    epsilon: float = 1e-3
    num_directions: int = 1
    distribution: Distribution = "rademacher"
    batch_size: int = field(default=0, metadata={"key": "mezo-batch-size"})

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if not 1 <= self.num_directions <= MAX_DIRECTIONS or self.batch_size < 0:
            raise ValueError(
                f"num_directions must lie in [1, {MAX_DIRECTIONS}] and batch_size be at least 0, "
                f"got {self.num_directions} and {self.batch_size}"
            )
        if self.request.tune != ("probe" if self.tuned == "head" else "full"):
            raise ValueError(f"tune does not fit the tuned part, got {self.request.tune!r} for {self.tuned!r}")
        Directions(self.distribution)


def build_model(
    setup: MezoSetup, start: Mapping[str, Tensor], module: nn.Module, feature_dim: int, device: torch.device
) -> TunedModel:
    """Return the model at the start, in float32 on the device.

    Parameters
    ----------
    setup : MezoSetup
        Of the training.
    start : mapping
        ``head.weight`` (C, D) and ``head.bias`` (C,), finite. A ValueError says if it does not fit.
    module : nn.Module
        The backbone's network, of features of dimension ``feature_dim``; copied if it is tuned, else left alone.
    feature_dim : int
        d.
    device : torch.device
        Where the model is to be.
    """
    request = setup.request
    shapes = {"head.weight": (request.num_classes, feature_dim), "head.bias": (request.num_classes,)}
    for name, shape in shapes.items():
        if name not in start or tuple(start[name].shape) != shape or not start[name].is_floating_point():
            got = f"{tuple(start[name].shape)} {start[name].dtype}" if name in start else "none"
            raise ValueError(f"{name}: must have shape {shape} and be floating, got {got}")
    head = LinearHead(start["head.weight"], start["head.bias"])
    model = TunedModel.of(request, head, module)
    # A direction's numbers belong to the elements in the order of a contiguous tensor.
    return model.to(device).to(memory_format=torch.contiguous_format)


def load_start(model: nn.Module, start: Mapping[str, Tensor]) -> nn.Module:
    """Load the state of a user's model, in place; a ValueError refuses that of another model."""
    try:
        model.load_state_dict(dict(start))
    except RuntimeError as error:
        raise ValueError(f"the arrays do not fit the model: {' '.join(str(error).split())}") from error
    return model


def make_replica(setup: MezoSetup, model: nn.Module) -> Replica:
    """Return the replica of a model at the start, with its tuned part; errors as :func:`tuned_names`."""
    names = tuned_names(model, setup.tuned)
    if not setup.request.tune_bias:
        names = tuple(name for name in names if name != "head.bias")
    return Replica(
        model,
        names,
        num_directions=setup.num_directions,
        epsilon=setup.epsilon,
        directions=Directions(setup.distribution),
    )
