"""PFPT beside FedAvg-PT and FedProx-PT: accuracy and bytes round by round, from a random head and from Fed3R's.

    python -m research.benchmarks.prompts "dataset=parquet:/data/trec6 backbone=all-MiniLM-L6-v2 input-size=32 \\
      partition.samples-per-class=40 dirichlet-alpha=0.5" --rounds 3

The backbone is one that takes prompts: a ViT of torchvision, or a text encoder. FedAvg-PT and FedProx-PT put the whole
pool into every sample, as the app does; "FedAvg-PT, chosen" averages the pool of which PFPT's samples choose, so that
it differs from PFPT by the matching alone; "head only" has no prompts. All have the same split, start, batches and
Adam. Fed3R's head is of the clients' samples, divided by the temperature of its least loss on them. Bytes are FedCOF's
formula, both ways. One line of JSON is printed per training, then a table.

FedCOF's table 4 on CIFAR-100 (3.0 million images forward and backward a training, which stay in memory: 30 GB):

    python -m research.benchmarks.prompts "dataset=hub:uoft-cs/cifar100 label-column=fine_label partitioner=fedcof \\
      backbone=vit_b_32 input-size=224" --clients 100 --seeds 3 --rounds 120 --fraction 0.1 --local-epochs 5 \\
      --rate 1e-4 --test 10000
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedstats_app.backbones.feature_reader import DatasetSamples
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions, test_split, training_set
from fedstats_app.heads import LinearHead, solve_ridge
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.evaluation import evaluate, losses_by_temperature
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import best_temperature, random_head
from fedstats_app.training.training_options import LocalOptions
from research.baselines.mlp_head import federated_average
from research.baselines.pfpt import PromptPool, pool_model, similarity_loss, tune_by_matching
from research.baselines.prompts import initial_prompts, prompt_adam, prompt_model, taking_prompts
from research.benchmarks.features import config_of
from research.benchmarks.lines import experiments_of, mean_and_half, run
from research.formulas import TableSizes, formula_bytes

_AT_ONCE = 64


@dataclass(frozen=True)
class Tuned:
    """One training.

    Attributes
    ----------
    experiment, start, method : str
        On what, from which head, and how.
    seed : int
        Of split, prompts, random head and batches.
    accuracy : list of float
        In per cent: of the head without prompts, with the prompts drawn, and after every round.
    prompts : list of int
        That every round began with.
    megabytes : list of float
        Of every round, both ways.
    """

    experiment: str
    start: str
    method: str
    seed: int
    accuracy: list[float]
    prompts: list[int]
    megabytes: list[float]


@dataclass(frozen=True, eq=False)
class Federation:
    """A network, its clients' inputs and labels, those to test on, and what all trainings have in common."""

    network: nn.Module
    clients: Sequence[tuple[Tensor, Tensor]]
    test: TensorSamples
    num_classes: int
    seed: int
    options: LocalOptions
    given: argparse.Namespace

    @functools.cached_property
    def features(self) -> tuple[list[tuple[Tensor, Tensor]], TensorSamples]:
        """Of the clients, (n, d) float32 with labels, and of the test samples, by the frozen network."""
        tested = self.test.inputs(torch.arange(len(self.test.labels)))
        own = [(self._extracted(inputs), labels) for inputs, labels in self.clients]
        return own, TensorSamples(self._extracted(tested), self.test.labels)

    @torch.no_grad()
    def _extracted(self, inputs: Tensor) -> Tensor:
        device = next(self.network.parameters()).device
        return torch.cat([self.network(batch.to(device)).cpu() for batch in torch.split(inputs, _AT_ONCE)])

    def starts(self) -> Iterator[tuple[str, LinearHead, float]]:
        """Yield names, heads and temperatures."""
        features, labels = (torch.cat(column) for column in zip(*self.features[0], strict=True))
        yield "random", random_head(self.num_classes, features.shape[1], self.seed, bias=False), 1.0
        statistics = FeatureStatistics.from_features(features.double(), labels, self.num_classes)
        fed3r = solve_ridge(statistics, ridge_lambda="auto")
        own = TensorSamples(features, labels)
        losses = losses_by_temperature(TunedModel(fed3r, tune="probe"), own, _AT_ONCE)
        yield "Fed3R", fed3r, best_temperature(losses)

    def trainings(self, head: LinearHead, temperature: float) -> Iterator[tuple[str, list[float], list[int]]]:
        """Yield method, accuracies and prompts of every training from one head."""
        drawn = initial_prompts(self.network, self.given.pool, self.seed)
        probe = TunedModel(head, tune="probe", tune_bias=False, temperature=temperature)
        alone = self._accuracy(probe)
        yield "head only", *self._trained(probe, alone)
        for method, mu in (("FedAvg-PT", 0.0), ("FedProx-PT", self.given.mu)):
            model = prompt_model(head, self.network, drawn.clone(), temperature=temperature)
            yield method, *self._trained(model, alone, mu=mu)
        for method, match in (("FedAvg-PT, chosen", False), ("PFPT", True)):
            model = pool_model(head, self.network, drawn, self.given.tokens, temperature=temperature)
            yield method, *self._trained(model, alone, match=match)

    def _accuracy(self, model: TunedModel) -> float:
        samples = self.features[1] if model.backbone is None else self.test
        return 100 * evaluate(model, samples, batch_size=_AT_ONCE).confusion.accuracy

    def _trained(
        self, model: TunedModel, alone: float, *, mu: float = 0.0, match: bool = False
    ) -> tuple[list[float], list[int]]:
        """Train a model; return the accuracies, and with how many prompts every round began."""
        accuracy, prompts = [alone, self._accuracy(model)], [_prompts_of(model)]

        def noted() -> None:
            accuracy.append(self._accuracy(model))
            prompts.append(_prompts_of(model))

        clients = self.features[0] if model.backbone is None else self.clients
        options, given = replace(self.options, proximal_mu=mu), self.given
        how = {"num_rounds": given.rounds, "fraction": given.fraction, "seed": self.seed, "after_round": noted}
        if match:
            tune_by_matching(model, clients, options, **how)
        else:
            extra_loss = similarity_loss(model.backbone) if isinstance(model.backbone, PromptPool) else None
            federated_average(model, clients, options, extra_loss=extra_loss, optimizer=prompt_adam, **how)
        return accuracy, prompts[:-1]


def _prompts_of(model: TunedModel) -> int:
    return len(model.trained_state().get("backbone.prompts", ()))


def measure(experiment: str, given: argparse.Namespace) -> Iterator[Tuned]:
    """Yield every training on every split of one experiment."""
    config = config_of(experiment)
    backbone, train = loaded_backbone(config.backbone_for(own_data=False)), training_set(config.data)
    all_test = test_split(config.data.dataset, config.data)
    if all_test is None:
        raise ValueError(f"dataset {config.data.dataset!r} must have a test split, got none")
    tested = DatasetSamples(all_test, np.random.default_rng(0).permutation(len(all_test))[: given.test], backbone)
    test = TensorSamples(tested.inputs(torch.arange(len(tested.labels))), tested.labels)
    options = LocalOptions(epochs=given.local_epochs, batch_size=given.batch, learning_rate=given.rate)
    for number in given.clients:
        for seed in range(given.seeds):
            own = config_of(experiment, num_clients=number, seed=seed)
            parts = [part for part in partitions(own.data, own.partition, seed) if len(part)]
            samples = [DatasetSamples(train, part, backbone) for part in parts]
            clients = [(client.inputs(torch.arange(len(client.labels))), client.labels) for client in samples]
            classes = len(train.class_names)
            federation = Federation(taking_prompts(backbone.module), clients, test, classes, seed, options, given)
            drawn = max(1, round(given.fraction * len(clients)))
            for start, head, temperature in federation.starts():
                for method, accuracy, prompts in federation.trainings(head, temperature):
                    sizes = (TableSizes(0, drawn, classes, backbone.feature_dim, prompts=number) for number in prompts)
                    megabytes = [formula_bytes("pfpt", size) / 1e6 for size in sizes]
                    yield Tuned(experiment, start, method, seed, accuracy, prompts, megabytes)


def table(lines: Sequence[Tuned]) -> str:
    """Write a Markdown table: means over seeds, in brackets half of the 95% interval at the end."""
    rounds = " | ".join(f"round {number}" for number in range(1, len(lines[0].prompts) + 1))
    written = [f"| start, method | head alone | start | {rounds} | prompts | MB |"]
    written.append("| --- |" + " ---: |" * (len(lines[0].accuracy) + 2))
    for start, method in dict.fromkeys((line.start, line.method) for line in lines):
        own = [line for line in lines if (line.start, line.method) == (start, method)]
        *before, last = zip(*(line.accuracy for line in own), strict=True)
        mean, half = mean_and_half(last)
        cells = [*(f"{np.mean(values):.2f}" for values in before), f"{mean:.2f} ({half:.2f})"]
        pools = ", ".join(f"{np.mean(values):g}" for values in zip(*(line.prompts for line in own), strict=True))
        sent = np.mean([sum(line.megabytes) for line in own])
        written.append(f"| {start}, {method} | {' | '.join(cells)} | {pools} | {sent:.2f} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10,), seeds=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients in a round")
    parser.add_argument("--local-epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam")
    parser.add_argument("--mu", type=float, default=1e-3, help="of FedProx-PT")
    parser.add_argument("--pool", type=int, default=20, help="prompts to begin with")
    parser.add_argument("--tokens", type=int, default=10, help="prompts that a sample chooses of a pool")
    parser.add_argument("--test", type=int, default=500, help="test samples, drawn once")
    options = parser.parse_args(arguments)
    run(options, Tuned, lambda experiment: measure(experiment, options), table)


if __name__ == "__main__":
    main()
