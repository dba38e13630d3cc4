"""Flower's strategies by their names in ``optimizer``, and their state for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Strategy
from torch import Tensor

from fedstats_app.training.training_options import OptimizerOptions

# All clients that FineTuning shows; it never asks these strategies to evaluate.
EVERYBODY: dict[str, Any] = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}


def make_optimizer(options: OptimizerOptions) -> Strategy:
    """Return a fresh strategy."""
    if options.optimizer == "fedprox":
        return FedProx(proximal_mu=options.proximal_mu, **EVERYBODY)
    if options.optimizer == "fedadam":
        return FedAdam(eta=options.server_learning_rate, **EVERYBODY)
    return FedAvg(**EVERYBODY)


def optimizer_state(strategy: Strategy) -> dict[str, Tensor]:
    """Collect the moments that a strategy keeps from round to round, for a checkpoint."""
    return {
        f"{moment}/{name}": torch.from_numpy(np.array(values))
        for moment in ("m_t", "v_t")
        for name, values in (getattr(strategy, moment, None) or {}).items()
    }


def load_optimizer_state(strategy: Strategy, state: Mapping[str, Tensor]) -> None:
    """Give a fresh strategy back the moments that :func:`optimizer_state` returned.

    Raises
    ------
    ValueError
        If the state is of another strategy.
    """
    for key, values in state.items():
        moment, _, name = key.partition("/")
        if not hasattr(strategy, moment):
            raise ValueError(f"the checkpoint has {key!r}, which {type(strategy).__name__} does not keep")
        setattr(strategy, moment, {**(getattr(strategy, moment) or {}), name: values.numpy()})
