"""An MLP head on frozen features, trained whole or by adapters of its hidden layer: accuracy and what travels.

    python -m benchmarks.adapters dataset=builtin --clients 100 --seeds 5

The hidden layer starts as random features. LoRA trains adapters of it, averaged as they are or exactly (FedEx-LoRA);
SLoRA trains a tenth of the layer's weights for a fifth of the rounds, and then adapters that begin as the best
approximation of what came of it. The head is trained in all of them. Bytes are of all clients and rounds, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines import FRACTION, HIDDEN, MB, ROUND_OPTIONS, ROUNDS, mean_and_half
from benchmarks.features import Features, features_of
from benchmarks.lines import parser_of, run
from fedstats_app.baselines.adapters import (
    AdaptedLinear,
    Adapter,
    SparseLinear,
    low_rank_start,
    merge_exactly,
    sparse_positions,
    start_adapter,
)
from fedstats_app.baselines.mlp_head import Merge, average, federated_average, head_on, hidden_layer, mlp_head
from fedstats_app.config import AppConfig
from fedstats_app.data.clients import partitions
from fedstats_app.training.model import TunedModel

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


class _Federation:
    """The clients of one seed."""

    def __init__(self, data: Features, parts: Sequence[np.ndarray], seed: int) -> None:
        self.data, self.seed = data, seed
        indices = [torch.from_numpy(part) for part in parts]
        self.clients = [(data.train[index], data.train_labels[index]) for index in indices]
        self.start = hidden_layer(data.train.shape[1], HIDDEN, seed)
        self.head = (torch.zeros(data.num_classes, HIDDEN), torch.zeros(data.num_classes))

    def train(self, model: TunedModel, num_rounds: int, merge: Merge = average) -> float:
        """Train a model and return the megabytes, with those of FedEx-LoRA's residual."""
        models = federated_average(
            model,
            self.clients,
            ROUND_OPTIONS,
            num_rounds=num_rounds,
            fraction=FRACTION,
            seed=self.seed,
            merge=merge,
        )
        numbers = models * sum(value.numel() for value in model.trained_state().values())
        if merge is merge_exactly:
            drawn = models // (2 * num_rounds)
            adapter = RANK * sum(self.start.shape)
            numbers += models // 2 * min(self.start.numel(), drawn * adapter)
        return 4 * numbers / MB

    def adapted(self, adapter: Adapter, bias: Tensor, head: tuple[Tensor, Tensor]) -> TunedModel:
        return head_on(AdaptedLinear(self.start, adapter, bias), head)

    def slora(self) -> tuple[TunedModel, float]:
        """Train SLoRA's two stages."""
        positions = sparse_positions(self.start.numel(), DENSITY, seed=self.seed)
        sparse = head_on(SparseLinear(self.start, positions, torch.zeros(HIDDEN)), self.head)
        first = round(SPARSE_SHARE * ROUNDS)
        megabytes = self.train(sparse, first)
        layer = sparse.get_submodule("backbone.0")
        assert isinstance(layer, SparseLinear)
        begun = low_rank_start(layer.update.detach(), RANK)
        state = sparse.trained_state()
        model = self.adapted(begun, layer.bias.detach(), (state["head.weight"], state["head.bias"]))
        return model, megabytes + self.train(model, ROUNDS - first)

    def accuracy(self, model: TunedModel) -> float:
        with torch.no_grad():
            return 100 * float((model(self.data.test).argmax(dim=1) == self.data.test_labels).double().mean())


def measure(config: AppConfig, num_clients: Sequence[int], seeds: int) -> Iterator[Adapted]:
    """Yield every number of clients and seed."""
    data = features_of(config)
    for clients in num_clients:
        for seed in range(seeds):
            own = AppConfig.from_run_config({**config.to_run_config(), "num-clients": clients, "seed": seed})
            federation = _Federation(data, partitions(own.data, own.partition, seed), seed)
            dim = data.train.shape[1]
            begun = start_adapter(dim, HIDDEN, RANK, seed=seed)
            whole = mlp_head(dim, HIDDEN, data.num_classes, seed=seed)
            naive, exact = (federation.adapted(begun, torch.zeros(HIDDEN), federation.head) for _ in range(2))
            trained = {
                "whole": (whole, federation.train(whole, ROUNDS)),
                "LoRA": (naive, federation.train(naive, ROUNDS)),
                "FedEx-LoRA": (exact, federation.train(exact, ROUNDS, merge_exactly)),
                "SLoRA": federation.slora(),
            }
            yield Adapted(
                clients,
                seed,
                {name: federation.accuracy(model) for name, (model, _) in trained.items()},
                {name: megabytes for name, (_, megabytes) in trained.items()},
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
    options = parser_of(__doc__).parse_args(arguments)
    run(options, Adapted, lambda _, config: measure(config, options.clients, options.seeds), table)


if __name__ == "__main__":
    main()
