"""An MLP head on frozen features, trained whole or by adapters of its hidden layer: accuracy and what travels.

    python -m research.benchmarks.adapters dataset=builtin --clients 100 --seeds 5

The hidden layer starts as random features. LoRA trains adapters and averages them; SLoRA trains a tenth of the layer's
weights for a fifth of the rounds, and then adapters that begin as the best approximation of what came of it. The head
is trained in all of them. Bytes are of all clients and rounds, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.training.model import TunedModel
from research.baselines.adapters import (
    AdaptedLinear,
    Factors,
    SparseLinear,
    nearest_factors,
    sparse_positions,
    start_factors,
)
from research.baselines.mlp_head import federated_average, head_on, hidden_layer, mlp_head
from research.benchmarks.baselines import FRACTION, HIDDEN, MB, ROUND_OPTIONS, ROUNDS
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

RANK, DENSITY, SPARSE_SHARE = 8, 0.1, 0.2


@dataclass(frozen=True)
class Adapted:
    """One seed.

    Attributes
    ----------
    num_clients, seed : int
        Of the split.
    accuracy : dict
        In per cent, by what was trained.
    megabytes : dict
        Of all rounds, both ways.
    """

    num_clients: int
    seed: int
    accuracy: dict[str, float]
    megabytes: dict[str, float]


class Federation:
    """The clients of one seed, and a hidden layer and a head that they train.

    Parameters
    ----------
    data : Features
        All samples.
    parts : sequence of ndarray
        The training samples of every client.
    seed : int
        Of the hidden layer, clients and batches.
    hidden, num_rounds : int
        Units of the layer, and rounds of a training.
    fraction : float
        Of the clients in a round.
    """

    def __init__(
        self,
        data: Features,
        parts: Sequence[np.ndarray],
        seed: int,
        *,
        hidden: int = HIDDEN,
        num_rounds: int = ROUNDS,
        fraction: float = FRACTION,
    ) -> None:
        self.data, self.seed, self.dim = data, seed, data.train.shape[1]
        self.num_rounds, self.fraction = num_rounds, fraction
        indices = [torch.from_numpy(part) for part in parts]
        self.clients = [(data.train[index], data.train_labels[index]) for index in indices]
        self.base = hidden_layer(self.dim, hidden, seed)
        self.bias = torch.zeros(hidden)
        self.head = (torch.zeros(data.num_classes, hidden), torch.zeros(data.num_classes))

    def train(
        self, model: TunedModel, num_rounds: int, after_round: Callable[[TunedModel], None] = lambda model: None
    ) -> float:
        """Train a model, call `after_round` with it after every round, and return the megabytes."""
        models = federated_average(
            model,
            self.clients,
            ROUND_OPTIONS,
            num_rounds=num_rounds,
            fraction=self.fraction,
            seed=self.seed,
            after_round=lambda: after_round(model),
        )
        return 4 * models * sum(value.numel() for value in model.trained_state().values()) / MB

    def adapted(self, factors: Factors, bias: Tensor, head: tuple[Tensor, Tensor]) -> TunedModel:
        return head_on(AdaptedLinear(self.base, factors, bias), head)

    def lora(self) -> tuple[TunedModel, float]:
        model = self.adapted(start_factors(self.dim, len(self.base), RANK, seed=self.seed), self.bias, self.head)
        return model, self.train(model, self.num_rounds)

    def slora(self, after_round: Callable[[TunedModel], None] = lambda model: None) -> tuple[TunedModel, float]:
        """Train SLoRA's two stages, and call `after_round` with the model after every round."""
        layer = SparseLinear(self.base, sparse_positions(self.base.numel(), DENSITY, seed=self.seed), self.bias)
        sparse = head_on(layer, self.head)
        first = round(SPARSE_SHARE * self.num_rounds)
        megabytes = self.train(sparse, first, after_round)
        trained = sparse.get_submodule("backbone.0")
        assert isinstance(trained, SparseLinear)
        state = sparse.trained_state()
        factors = nearest_factors(trained.update.detach(), RANK)
        model = self.adapted(factors, trained.bias.detach(), (state["head.weight"], state["head.bias"]))
        return model, megabytes + self.train(model, self.num_rounds - first, after_round)

    def accuracy(self, model: TunedModel) -> float:
        with torch.no_grad():
            return 100 * float((model(self.data.test).argmax(dim=1) == self.data.test_labels).double().mean())


def measure(experiment: str, num_clients: Sequence[int], seeds: int) -> Iterator[Adapted]:
    """Yield every number of clients and seed."""
    data = features_of(config_of(experiment))
    for clients in num_clients:
        for seed in range(seeds):
            own = config_of(experiment, num_clients=clients, seed=seed)
            federation = Federation(data, partitions(own.data, own.partition, seed), seed)
            whole = mlp_head(federation.dim, (HIDDEN,), data.num_classes, seed=seed)
            accuracy, megabytes = {"before": federation.accuracy(whole)}, {"before": 0.0}
            trained = {
                "whole": (whole, federation.train(whole, ROUNDS)),
                "LoRA": federation.lora(),
                "SLoRA": federation.slora(),
            }
            for name, (model, sent) in trained.items():
                accuracy[name], megabytes[name] = federation.accuracy(model), sent
            yield Adapted(clients, seed, accuracy, megabytes)


def table(lines: Sequence[Adapted]) -> str:
    """Write a Markdown table: means over all lines, in brackets half of the 95% interval."""
    written = ["| trained | accuracy (%) | MB, both ways |", "| --- | ---: | ---: |"]
    for name in lines[0].accuracy:
        mean, half = mean_and_half([line.accuracy[name] for line in lines])
        sent = float(np.mean([line.megabytes[name] for line in lines]))
        written.append(f"| {name} | {mean:.2f} ({half:.2f}) | {sent:,.0f} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    options = experiments_of(__doc__, clients=(5, 10, 100), seeds=5).parse_args(arguments)
    run(options, Adapted, lambda experiment: measure(experiment, options.clients, options.seeds), table)


if __name__ == "__main__":
    main()
