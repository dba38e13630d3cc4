"""The optimisers of stage 2: Flower's strategies by name, the papers' FedAdam, and their state for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from torch import Tensor

from fedstats_app.training.server_adam import ServerAdam
from fedstats_app.training.training_options import OptimizerOptions
from fedstats_app.wire.arrays import to_record, to_tensors

# All clients that FineTuning shows; it never asks these strategies to evaluate.
EVERYBODY = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}


class FedAdamTorch(FedAvg):
    """FedAdam as the papers ran it: torch's Adam, with bias correction and weight decay, on the averaged change.

    FedNCM, FedCOF and FedCGS used FLSim, whose server takes the clients' average change as the negative of a gradient.
    Flower's FedAdam is that of Reddi et al. (2021), with tau 1e-3, no decay, and bias corrected by round + 1.

    Parameters
    ----------
    learning_rate : float
        The server's.
    buffers : frozenset of str
        Arrays that are averaged and not adapted (running statistics of BatchNorm).
    """

    def __init__(self, learning_rate: float, *, buffers: frozenset[str] = frozenset()) -> None:
        super().__init__(**EVERYBODY)  # type: ignore[arg-type]  # floats and ints by name
        self.adam = ServerAdam(learning_rate, buffers=buffers)
        self._current: dict[str, Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg's; keep what clients start from."""
        self._current = to_tensors(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average as FedAvg does, then take Adam's step."""
        average, metrics = super().aggregate_train(server_round, replies)
        if average is None:
            return None, metrics
        return to_record(self.adam.step(self._current, to_tensors(average))), metrics


# From a name of `optimizer` to what makes the strategy from the options.
OPTIMIZERS: dict[str, Callable[[OptimizerOptions, frozenset[str]], Strategy]] = {
    "fedavg": lambda options, buffers: FedAvg(**EVERYBODY),  # type: ignore[arg-type]
    "fedprox": lambda options, buffers: FedProx(proximal_mu=options.proximal_mu, **EVERYBODY),  # type: ignore[arg-type]
    "fedavgm": lambda options, buffers: FedAvgM(
        server_learning_rate=options.server_rate,
        server_momentum=options.server_momentum,
        **EVERYBODY,  # type: ignore[arg-type]
    ),
    "fedadam": lambda options, buffers: FedAdam(eta=options.server_rate, **EVERYBODY),  # type: ignore[arg-type]
    "fedyogi": lambda options, buffers: FedYogi(eta=options.server_rate, **EVERYBODY),  # type: ignore[arg-type]
    "fedadam-torch": lambda options, buffers: FedAdamTorch(options.server_rate, buffers=buffers),
}


def make_optimizer(options: OptimizerOptions, *, buffers: frozenset[str] = frozenset()) -> Strategy:
    """Return a fresh strategy for stage 2.

    Parameters
    ----------
    options : OptimizerOptions
        Which, and its settings.
    buffers : frozenset of str
        Names of arrays that are running statistics, not parameters.
    """
    return OPTIMIZERS[options.optimizer](options, buffers)


def optimizer_state(strategy: Strategy) -> dict[str, Tensor]:
    """Collect what a strategy of :data:`OPTIMIZERS` remembers from round to round, for a checkpoint."""
    if isinstance(strategy, FedAdamTorch):
        return strategy.adam.state()
    state: dict[str, Tensor] = {}
    for moment in ("m_t", "v_t"):
        for name, values in (getattr(strategy, moment, None) or {}).items():
            state[f"{moment}/{name}"] = torch.from_numpy(np.array(values))
    for index, values in enumerate(getattr(strategy, "momentum_vector", None) or ()):
        state[f"momentum_vector/{index}"] = torch.from_numpy(np.array(values))
    return state


def load_optimizer_state(strategy: Strategy, state: Mapping[str, Tensor]) -> None:
    """Give a fresh strategy back what :func:`optimizer_state` returned.

    Raises
    ------
    ValueError
        If the state is of another strategy.
    """
    if isinstance(strategy, FedAdamTorch):
        strategy.adam.load_state(state)
        return
    momentum: dict[int, np.ndarray] = {}
    for key, values in state.items():
        kind, _, name = key.partition("/")
        if not hasattr(strategy, kind):
            raise ValueError(f"the checkpoint has {key!r}, which {type(strategy).__name__} does not keep")
        if kind == "momentum_vector":
            momentum[int(name)] = values.numpy()
        else:
            setattr(strategy, kind, {**(getattr(strategy, kind) or {}), name: values.numpy()})
    if momentum:  # by number: a file has its tensors in the order of their names, where 10 comes before 2
        strategy.momentum_vector = [momentum[index] for index in sorted(momentum)]  # type: ignore[attr-defined]
