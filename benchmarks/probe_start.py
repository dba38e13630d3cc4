"""What a linear probe loses or gains from solved heads: at the found temperature and rate, and at fixed ones.

    python -m benchmarks.probe_start dataset=builtin "dataset=parquet:/data/sst2 backbone=all-MiniLM-L6-v2"

Plain averaging over cached features, as ``fine-tune = "probe"`` does it, without Flower.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.features import Features, features_of, settings_of
from fedstats_app.config import AppConfig
from fedstats_app.data.clients import partitions
from fedstats_app.heads import LinearHead, solve_ncm, solve_ridge
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training import LocalOptions
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.probe_rate import probe_rate, probe_step
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start_heads import random_head
from fedstats_app.training.zeroth_order.measures import best_temperature, losses_by_temperature

# As the defaults were before anything was found.
FIXED_RATE = 0.01


def averaged(head: LinearHead, parts: Sequence[TensorSamples], rate: float, rounds: int, share: float) -> LinearHead:
    """Return what rounds of averaging make of a head; the clients of a round are drawn by its number."""
    weight, bias = head.weight.float(), head.bias.float()
    with_samples = [number for number, part in enumerate(parts) if len(part.labels)]
    for number in range(rounds):
        draw = np.random.default_rng([0, number])
        chosen = draw.choice(with_samples, max(1, round(share * len(with_samples))), replace=False)
        sums = [torch.zeros_like(weight), torch.zeros_like(bias)]
        total = sum(len(parts[client].labels) for client in chosen)
        for client in chosen:
            model, samples = TunedModel((weight, bias), tune="probe"), parts[client]
            train_locally(model, samples, LocalOptions(learning_rate=rate), key=(0, int(client), number))
            for one, new in zip(sums, (model.head.weight, model.head.bias), strict=True):
                one += len(samples.labels) / total * new.detach()
        weight, bias = sums
    return LinearHead(weight.double(), bias.double())


def rows(config: AppConfig, features: Features, clients: int, share: float, rounds: int) -> list[str]:
    """Return a line of the table for every head: its accuracy, at fixed values and at those found."""
    train, labels, num_classes = features.train, features.train_labels, features.num_classes
    indices = partitions(config.data, replace(config.partition, num_clients=clients), config.run.seed)
    parts = [TensorSamples(train[torch.from_numpy(one)], labels[torch.from_numpy(one)]) for one in indices]
    statistics = FeatureStatistics.from_features(train, labels, num_classes)
    step = probe_step(statistics.class_counts, statistics.class_sums)
    assert step is not None
    heads = {
        "random": random_head(num_classes, train.shape[1], seed=0),
        "FedNCM": solve_ncm(statistics),
        "Fed3R": solve_ridge(statistics, ridge_lambda="auto"),
    }
    lines = []
    for name, head in heads.items():
        made = name == "random"
        losses = losses_by_temperature(TunedModel(head, tune="probe"), TensorSamples(train, labels), 4096)
        temperature = 1.0 if made else best_temperature(losses)
        rate = probe_rate(step, made=made)
        divided = replace(head, weight=head.weight / temperature, bias=head.bias / temperature)
        found = averaged(divided, parts, rate, rounds, share)
        fixed = averaged(head, parts, FIXED_RATE, rounds, share)
        right = (_percent_right(one, features.test, features.test_labels) for one in (head, fixed, found))
        scores = " | ".join(f"{one:.2f}" for one in right)
        lines.append(f"| {clients} | {name} | {scores} | {temperature:.3g}, {rate:.3g} |")
    return lines


def _percent_right(head: LinearHead, inputs: Tensor, labels: Tensor) -> float:
    return 100.0 * float((head.predict(inputs) == labels).float().mean())


def main() -> None:
    """Print a table of every experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", help="settings as key=value pairs, or a TOML file")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.3, help="of the clients in a round, where they are over 10")
    options = parser.parse_args()
    for experiment in options.experiments:
        config = AppConfig.from_run_config(settings_of(experiment))
        features = features_of(config)
        print(
            f"{experiment}\n\n| clients | head | start | fixed | found | temperature, rate |\n|---|---|---|---|---|---|"
        )
        for clients in options.clients:
            share = options.share if clients > 10 else 1.0
            print("\n".join(rows(config, features, clients, share, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
