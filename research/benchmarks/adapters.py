"""An MLP head on frozen features, or a text encoder, trained whole or by adapters: accuracy and what travels.

    python -m research.benchmarks.adapters dataset=builtin --clients 100 --seeds 5
    python -m research.benchmarks.adapters "dataset=parquet:/data/sst2 backbone=all-MiniLM-L6-v2 \\
      partitioner=dirichlet@samples-per-class=100" --clients 10 --seeds 1 --learning-rate 0.1

The hidden layer starts as random features; of a text encoder the queries and values are trained, under FedNCM's head.
LoRA trains adapters, averaged as they are or exactly (FedEx-LoRA); SLoRA trains a tenth of the layers' weights for a
fifth of the rounds, and then adapters that begin as the best approximation of what came of it. The head is trained in
all of them. Bytes are of all clients and rounds, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.training.model import TunedModel
from research.baselines.adapters import (
    AdaptedLinear,
    Adapter,
    SparseLinear,
    low_rank_start,
    merge_exactly,
    sparse_positions,
    start_adapter,
)
from research.baselines.mlp_head import Merge, average, federated_average
from research.benchmarks.adapted_networks import Network, network_of
from research.benchmarks.baselines import FRACTION, MB, ROUND_OPTIONS, ROUNDS
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

RANK, DENSITY, SPARSE_SHARE = 8, 0.1, 0.2
# Keeps the draws of one layer apart from another's under the next seeds.
_LAYER_SEEDS = 1000
_BATCH = 256


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


class _Federation:
    """The clients of one seed."""

    def __init__(self, network: Network, data: Features, parts: Sequence[np.ndarray], seed: int, rate: float) -> None:
        self.network, self.data, self.seed = network, data, seed
        indices = [torch.from_numpy(part) for part in parts]
        self.clients = [(network.train[index], data.train_labels[index]) for index in indices]
        self.options = replace(ROUND_OPTIONS, learning_rate=rate)

    def train(self, model: TunedModel, num_rounds: int, merge: Merge = average) -> float:
        """Train a model and return the megabytes, with those of FedEx-LoRA's residuals."""
        models = federated_average(
            model,
            self.clients,
            self.options,
            num_rounds=num_rounds,
            fraction=FRACTION,
            seed=self.seed,
            merge=merge,
        )
        numbers = models * sum(value.numel() for value in model.trained_state().values())
        if merge is merge_exactly:
            drawn = models // (2 * num_rounds)
            for layer in self.network.layers.values():
                numbers += models // 2 * min(layer.weight.numel(), drawn * RANK * sum(layer.weight.shape))
        return 4 * numbers / MB

    def whole(self) -> TunedModel:
        return self.network.build(self.network.layers, self.network.head)

    def begun(self) -> TunedModel:
        """Return the model with adapters that change nothing yet."""
        adapters = {}
        for index, (name, layer) in enumerate(self.network.layers.items()):
            outputs, inputs = layer.weight.shape
            adapters[name] = start_adapter(inputs, outputs, RANK, seed=self.seed + _LAYER_SEEDS * index)
        return self.adapted(adapters, {name: layer.bias for name, layer in self.network.layers.items()})

    def adapted(
        self, adapters: Mapping[str, Adapter], biases: Mapping[str, Tensor], head: tuple[Tensor, Tensor] | None = None
    ) -> TunedModel:
        layers = {
            name: AdaptedLinear(layer.weight.detach(), adapters[name], biases[name].detach())
            for name, layer in self.network.layers.items()
        }
        return self.network.build(layers, self.network.head if head is None else head)

    def slora(self) -> tuple[TunedModel, float]:
        """Train SLoRA's two stages."""
        sparse_layers = {}
        for index, (name, layer) in enumerate(self.network.layers.items()):
            positions = sparse_positions(layer.weight.numel(), DENSITY, seed=self.seed + _LAYER_SEEDS * index)
            sparse_layers[name] = SparseLinear(layer.weight.detach(), positions, layer.bias.detach())
        sparse = self.network.build(sparse_layers, self.network.head)
        first = round(SPARSE_SHARE * ROUNDS)
        megabytes = self.train(sparse, first)
        begun, biases = {}, {}
        for name in self.network.layers:
            trained = sparse.get_submodule(name)
            assert isinstance(trained, SparseLinear)
            begun[name], biases[name] = low_rank_start(trained.update.detach(), RANK), trained.bias
        state = sparse.trained_state()
        model = self.adapted(begun, biases, (state["head.weight"], state["head.bias"]))
        return model, megabytes + self.train(model, ROUNDS - first)

    def accuracy(self, model: TunedModel) -> float:
        with torch.no_grad():
            right = [
                model(self.network.test[index]).argmax(dim=1) == self.data.test_labels[index]
                for index in torch.split(torch.arange(len(self.data.test_labels)), _BATCH)
            ]
        return 100 * float(torch.cat(right).double().mean())


def measure(experiment: str, num_clients: Sequence[int], seeds: int, rate: float) -> Iterator[Adapted]:
    """Yield every number of clients and seed."""
    data = features_of(config_of(experiment))
    for clients in num_clients:
        for seed in range(seeds):
            own = config_of(experiment, num_clients=clients, seed=seed)
            parts = partitions(own.data, own.partition, seed)
            used = torch.from_numpy(np.sort(np.concatenate(parts)))
            federation = _Federation(network_of(own, data, used, seed), data, parts, seed, rate)
            whole, naive, exact = federation.whole(), federation.begun(), federation.begun()
            start = federation.accuracy(whole)
            trained = {
                "whole": (whole, federation.train(whole, ROUNDS)),
                "LoRA": (naive, federation.train(naive, ROUNDS)),
                "FedEx-LoRA": (exact, federation.train(exact, ROUNDS, merge_exactly)),
                "SLoRA": federation.slora(),
            }
            yield Adapted(
                clients,
                seed,
                {"before": start, **{name: federation.accuracy(model) for name, (model, _) in trained.items()}},
                {"before": 0.0, **{name: megabytes for name, (_, megabytes) in trained.items()}},
            )


def table(lines: Sequence[Adapted]) -> str:
    """Return a Markdown table: means over all lines, in brackets half of the 95% interval."""
    written = ["| trained | accuracy (%) | MB, both ways |", "| --- | ---: | ---: |"]
    for name in lines[0].accuracy:
        mean, half = mean_and_half([line.accuracy[name] for line in lines])
        sent = float(np.mean([line.megabytes[name] for line in lines]))
        written.append(f"| {name} | {mean:.2f} ({half:.2f}) | {sent:,.0f} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(5, 10, 100), seeds=5)
    parser.add_argument("--learning-rate", type=float, default=ROUND_OPTIONS.learning_rate)
    options = parser.parse_args(arguments)
    own = (options.clients, options.seeds, options.learning_rate)
    run(options, Adapted, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
