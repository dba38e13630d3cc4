"""Options of training from a head: the rounds, the clients' SGD, the server's optimiser. No torch is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from fedstats_app.settings.option import Options, flag, number, one_of, option, whole

OPTIMIZERS = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadam-torch")
# Server learning rates where "auto" stands; 1, plain averaging, for the others.
AUTO_SERVER_RATE = {"fedadam": 0.01, "fedyogi": 0.01, "fedadam-torch": 0.001}

# What happens to the running statistics of BatchNorm in training.
BatchNorm = Literal["frozen", "kept", "averaged"]


# Learning rate where "auto" stands and none is found: all that trains the backbone.
FIXED_RATE = 0.01


@dataclass(frozen=True)
class _SgdOptions(Options):
    """What both say that have a learning rate: the configuration, and a request."""

    epochs: int = option(
        1, whole(1, 100_000), "passes over its samples that a client makes in a round", key="local-epochs"
    )
    batch_size: int = option(16, whole(1, 1_000_000), "samples per step of the clients' SGD", key="train-batch-size")
    momentum: float = option(0.0, number(0.0, 1.0), "of the clients' SGD")
    weight_decay: float = option(0.0, number(0.0), "of the clients' SGD")
    flip: bool = option(False, flag, "random horizontal flips of images (full, features)")


@dataclass(frozen=True)
class LocalOptions(_SgdOptions):
    """How a client trains.

    Attributes
    ----------
    epochs : int
        Passes over the client's samples.
    batch_size : int
        Samples per step; the last batch of an epoch has the rest.
    learning_rate, momentum, weight_decay : float
        Of torch.optim.SGD, whose momentum starts anew in every call.
    flip : bool
        Mirror images left to right with probability 1/2.
    proximal_mu : float
        FedProx (Li et al., MLSys 2020): adds mu (theta - theta_start) to the gradient; 0 for none. Flower's FedProx
        sets it, so it has no key of its own here.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    learning_rate: float = option(
        FIXED_RATE,
        number(0.0, open_low=True),
        "of the clients' SGD; auto = probe: from class means and local steps, else 0.01",
    )
    proximal_mu: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")
        for name in ("weight_decay", "proximal_mu"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")


@dataclass(frozen=True)
class ClientOptions(_SgdOptions):
    """How clients train as a run configures it: the learning rate may be left to be found."""

    learning_rate: float | Literal["auto"] = option(
        "auto",
        number(0.0, open_low=True, word="auto"),
        "of the clients' SGD; auto = probe: from class means and local steps, else 0.01",
    )

    def with_rate(self, found: float = FIXED_RATE) -> LocalOptions:
        """Return how clients train, with a rate that was found where none is given."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        rate = found if self.learning_rate == "auto" else self.learning_rate
        return LocalOptions(**{**values, "learning_rate": rate})


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """What the server does with the clients' updates, one of :data:`OPTIMIZERS` and its settings."""

    optimizer: str = option(
        "fedavg", one_of(*OPTIMIZERS), "fedavg | fedprox | fedavgm | fedadam | fedyogi | fedadam-torch (the papers')"
    )
    server_learning_rate: float | Literal["auto"] = option(
        "auto",
        number(0.0, open_low=True, word="auto"),
        "auto = 1 (averaging), 0.01 (fedadam, fedyogi), 0.001 (fedadam-torch)",
    )
    server_momentum: float = option(0.9, number(0.0, 1.0), "of fedavgm")
    proximal_mu: float = option(0.01, number(0.0), "of fedprox")
    update_clip: float = option(
        0.0, number(0.0), "longer changes of weights, in usual ones, are shortened to this; 0 = never"
    )
    update_outlier: float = option(
        4.0, number(0.0), "a client with so many times the usual change of weights is left out; 0 = never"
    )

    @property
    def server_rate(self) -> float:
        """The server's learning rate: 1 for averaging, and what the adaptive optimisers' papers found robust."""
        if self.server_learning_rate == "auto":
            return AUTO_SERVER_RATE.get(self.optimizer, 1.0)
        return self.server_learning_rate

    def problems(self) -> list[str]:
        """Refuse another rate than 1 where the optimiser averages."""
        if self.optimizer not in ("fedavg", "fedprox") or self.server_rate == 1.0:
            return []
        return [
            f"server-learning-rate: {self.optimizer} averages, which is rate 1 (fedavgm has one), "
            f"got {self.server_rate:g}"
        ]
