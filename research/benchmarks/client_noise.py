"""Accuracy where noise hides whole clients, by how long each may leave its sums.

    python -m research.benchmarks.client_noise "dataset=builtin" --clients 100 1000 --shares 0.05 0.1 0.2 0.4

A share is of an average client's samples. The sums and their heads are the app's, over clients drawn by Dirichlet(0.1),
without masks, and with noise as large as all clients' together: two fifths may be missing, but none is. Delta is N^-1.1
unless ``--delta`` names another. Accuracies are in per cent, one a draw of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.heads import solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.secure.account import CLIPPED, LEAST_CLIP, least_honest, mu_of, signal_to_noise
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout, unit
from fedstats_app.statistics.secure_words import Words, as_words
from fedstats_app.strategies.noisy_sums import learned
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run
from research.benchmarks.noise import POWER, cell, features_of_file


@dataclass(frozen=True)
class Clipped:
    """Clients of one number and share at one epsilon; ``signal`` to noise is known before, ``exact`` has no noise."""

    experiment: str
    clients: int
    share: float
    epsilon: float
    delta: float
    signal: float
    exact: dict[str, float]
    accuracy: dict[str, list[float]]


def draw(name: str, data: Features, parts: Sequence[Tensor], layout: NoisyLayout, seed: int) -> float:
    """Return the accuracy in per cent of a method's head, of one draw of the noise."""
    generator, honest = torch.Generator().manual_seed(seed), least_honest(len(parts))

    def summed(kind: NoisyKind, known: dict[str, Tensor]) -> tuple[Words, int]:
        own = (layout.sums(kind, [(data.train[part], data.train_labels[part])], known.get("mean")) for part in parts)
        total = [torch.stack(arrays).sum(dim=0) for arrays in zip(*own, strict=True)]
        sizes = (size * math.sqrt(len(parts)) for size in layout.noise(kind, honest))
        noisy = (
            words + size * torch.randn(words.shape, generator=generator, dtype=torch.float64)
            for words, size in zip(total, sizes, strict=True)
        )
        return [as_words(words.round().to(torch.int64), np.dtype(np.uint64)) for words in noisy], len(parts)

    found = learned(layout, summed, honest, len(data.train))
    heads = {"FedNCM": found.ncm, "Fed3R": found.ridge, "FedCGS": found.gaussian}
    return 100 * data.accuracy(heads[name]())


def measure(
    experiment: str,
    clients: Sequence[int],
    shares: Sequence[float],
    epsilons: Sequence[float],
    seeds: int,
    *,
    delta: float,
    methods: Sequence[str],
) -> Iterator[Clipped]:
    """Yield the lines of one experiment."""
    whole = features_of_file(experiment) if ".npz" in experiment else features_of(config_of(experiment))
    train, test = unit(whole.train.double()), unit(whole.test.double())
    data = Features(train, whole.train_labels, test, whole.test_labels, whole.num_classes)
    (count, dim), delta = train.shape, delta or len(train) ** POWER
    statistics = FeatureStatistics.from_features(train, data.train_labels, data.num_classes)
    heads = {
        "FedNCM": solve_ncm(statistics),
        "Fed3R": solve_ridge(statistics, ridge_lambda="auto"),
        "FedCGS": solve_gaussian(statistics, covariance="within", shrinkage="auto"),
    }
    exact = {name: 100 * data.accuracy(heads[name]) for name in methods}
    for number in clients:
        drawn = dirichlet(data.train_labels.numpy(), number, 0.1, 0, shuffled=True)
        parts, added = [torch.from_numpy(part) for part in drawn], math.sqrt(least_honest(number) / number)
        for share in shares:
            clip = max(share * count / number, LEAST_CLIP)
            for epsilon in epsilons:
                mu = mu_of(epsilon, delta)
                signal = signal_to_noise(count, data.num_classes, dim, mu * added) / clip
                layouts = {
                    name: NoisyLayout(data.num_classes, dim, moments=name != "FedNCM", mu=mu, clip=clip)
                    for name in methods
                }
                found = {
                    name: [draw(name, data, parts, layout, seed) for seed in range(seeds)]
                    for name, layout in layouts.items()
                }
                yield Clipped(experiment, number, share, epsilon, delta, signal, exact, found)


def table(lines: Sequence[Clipped]) -> str:
    """Return a Markdown table: a row for each number of clients, share and head, and its signal to noise."""
    epsilons = sorted({line.epsilon for line in lines})
    columns = ["clients", "share", "head", *(f"{epsilon:g}" for epsilon in epsilons), "no noise"]
    written = ["| " + " | ".join(columns) + " |", "|---:|---:|---|" + "---:|" * (len(epsilons) + 1)]
    for place in dict.fromkeys((line.experiment, line.clients, line.share) for line in lines):
        own = {line.epsilon: line for line in lines if (line.experiment, line.clients, line.share) == place}
        first = next(iter(own.values()))
        start = f"| {first.clients:,} | {first.share:g} |"
        for name, without in first.exact.items():
            accuracies = [own[epsilon].accuracy[name] if epsilon in own else [] for epsilon in epsilons]
            cells = [cell(values) if values else "" for values in accuracies]
            written.append(f"{start} {name} | " + " | ".join(cells) + f" | {without:.1f} |")
        signals = [f"{own[epsilon].signal:.2g}" if epsilon in own else "" for epsilon in epsilons]
        written.append(f"{start} signal to noise | " + " | ".join(signals) + " | |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(100, 1000), seeds=5)
    parser.add_argument("--shares", type=float, nargs="+", default=[CLIPPED])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--delta", type=float, default=0.0)
    parser.add_argument("--methods", nargs="+", default=["FedNCM"], choices=("FedNCM", "Fed3R", "FedCGS"))
    given = parser.parse_args(arguments)
    settings = (given.clients, given.shares, given.epsilons, given.seeds)
    run(
        given,
        Clipped,
        lambda experiment: measure(experiment, *settings, delta=given.delta, methods=given.methods),
        table,
    )


if __name__ == "__main__":
    main()
