"""FedRoot beside FedRAN, piece by piece: raw Gram or scatter about the rows, with and without the energy left out.

    python -m research.benchmarks.neighbours "dataset=builtin" --clients 100 --seeds 5 --expanded 2048

FedRAN (arXiv:2606.11480) sends each client's Gram matrix of random features, truncated by a singular value
decomposition, and its class sums; the server adds what arrives and solves a ridge. Here all variants send the class
sums and as many directions, sqrt(n) of a client with n samples, so their numbers are alike. The ridge has the largest
evidence or, as `best`, the best test accuracy of a grid. One line of JSON per split is printed, then a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.heads import solve_ridge
from fedstats_app.heads.fedroot import complete
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

_GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the mean eigenvalue


@dataclass(frozen=True)
class Compared:
    """One split: accuracy in per cent with the automatic and the best ridge, by variant."""

    experiment: str
    num_clients: int
    seed: int
    automatic: dict[str, float]
    best: dict[str, float]


def truncated(features: Tensor, rank: int) -> tuple[Tensor, float]:
    """Return F (rank, d), the largest singular values times their directions, and the energy that F leaves out."""
    _, values, directions = torch.linalg.svd(features, full_matrices=False)
    return values[:rank, None] * directions[:rank], float(values[rank:].square().sum())


def variants(clients: Sequence[tuple[Tensor, Tensor]], num_classes: int) -> Mapping[str, FeatureStatistics]:
    """Return what the server has of clients' features (n, d) float64 and labels (n,), by variant."""
    rows = [StatisticsSpec().from_features(*client, num_classes).rows for client in clients]
    stacked, dim = ClassMeanRows.concatenate(rows), clients[0][0].shape[1]
    raw, scatter = torch.zeros(dim, dim).double(), torch.zeros(dim, dim).double()
    raw_left = left = 0.0
    for (features, labels), own in zip(clients, rows, strict=True):
        rank = round(len(labels) ** 0.5)
        means = torch.zeros(num_classes, dim).double()
        means[own.class_ids] = own.means.double()
        (of_raw, more), (about, rest) = truncated(features, rank), truncated(features - means[labels], rank)
        raw, scatter = raw + of_raw.T @ of_raw, scatter + about.T @ about
        raw_left, left = raw_left + more, left + rest
    spread = torch.eye(dim).double() / dim
    return {
        "exact Gram": stacked.summed(sum((f.T @ f for f, _ in clients), torch.zeros(dim, dim).double())),
        "raw, nothing added (FedRAN)": stacked.summed(raw),
        "raw, energy spread evenly": stacked.summed(raw + raw_left * spread),
        "about the rows, nothing added": complete(stacked, scatter, 0.0),
        "about the rows, energy in shape (FedRoot)": complete(stacked, scatter, left),
    }


def measure(experiment: str, num_clients: Sequence[int], seeds: int, expanded: int) -> Iterator[Compared]:
    """Yield every split of one experiment, on features as they are and, if asked, after a random ReLU expansion."""
    data = features_of(config_of(experiment))
    for clients in num_clients:
        for seed in range(seeds):
            own = config_of(experiment, num_clients=clients, seed=seed)
            parts = [part for part in partitions(own.data, own.partition, seed) if len(part)]
            for dim in (0, expanded) if expanded else (0,):
                name = f"{experiment}, {dim} random features" if dim else experiment
                yield _compared(name, _expanded(data, dim), parts, clients, seed)


def _expanded(data: Features, dim: int) -> Features:
    if not dim:
        return data
    width = data.train.shape[1]
    drawn = torch.randn(width, dim, generator=torch.Generator().manual_seed(0)) / width**0.5
    maps = ((features @ drawn).relu() for features in (data.train, data.test))
    train, test = maps
    return Features(train, data.train_labels, test, data.test_labels, data.num_classes)


def _compared(name: str, data: Features, parts: Sequence[np.ndarray], clients: int, seed: int) -> Compared:
    index = [torch.from_numpy(part) for part in parts]
    sent = variants([(data.train[i].double(), data.train_labels[i]) for i in index], data.num_classes)
    automatic, best = {}, {}
    for variant, statistics in sent.items():
        assert statistics.gram is not None
        mean = float(statistics.gram.trace()) / len(statistics.gram)
        automatic[variant] = 100 * data.accuracy(solve_ridge(statistics, ridge_lambda="auto"))
        of_grid = [data.accuracy(solve_ridge(statistics, ridge_lambda=mean * factor)) for factor in _GRID]
        best[variant] = 100 * max(of_grid)
    return Compared(name, clients, seed, automatic, best)


def table(lines: Sequence[Compared]) -> str:
    """Write a Markdown table: automatic ridge, best ridge; means over splits, in brackets half of the 95% interval."""
    names = list(dict.fromkeys(line.experiment for line in lines))
    written = ["| the server adds | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for variant in lines[0].automatic:
        cells = []
        for name in names:
            own = [line for line in lines if line.experiment == name]
            automatic, best = (mean_and_half([accuracies[variant] for accuracies in found]) for found in _both(own))
            cells.append(f"{automatic[0]:.2f} ({automatic[1]:.2f}), {best[0]:.2f} ({best[1]:.2f})")
        written.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(written)


def _both(lines: Sequence[Compared]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    return [line.automatic for line in lines], [line.best for line in lines]


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(100,), seeds=5)
    parser.add_argument("--expanded", type=int, default=0, help="random features, as FedRAN has them (default: none)")
    options = parser.parse_args(arguments)
    run(
        options,
        Compared,
        lambda experiment: measure(experiment, options.clients, options.seeds, options.expanded),
        table,
    )


if __name__ == "__main__":
    main()
