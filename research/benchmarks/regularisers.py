"""The automatic regulariser of every method against the best fixed one, over data sets, sizes, clients and seeds.

    python -m research.benchmarks.regularisers conf/ag-news.toml "dataset=builtin" --clients 5 10 100 \\
      --per-class 0 5 20 50

An experiment is a TOML file of run-config keys, or ``key=value`` pairs in one word; without any, the default run. Its
features are computed once, or come from the feature cache. A configuration is a data set, a number of training samples
per class (0: all) and a number of clients, at most as many as there are samples; accuracies are means over seeds of
subset and split (Dirichlet as in the settings). The best fixed value is the best of a grid *of those means*: ridges
from 1e-4 to 1e6 of the mean eigenvalue of the scatter by factors of 3, and both limits. One line of JSON per
configuration and method is printed, and at the end a table of what the automatic choice loses, in points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data import Dataset, partition
from fedstats_app.data.clients import training_set
from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.heads.regularisation import HeadMap, with_between_class, without_between_class
from fedstats_app.heads.scatter import ClassTotals, class_mean_products, row_scatter
from fedstats_app.methods import FedRootMethod, Method
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.wire.statistics_records import with_scatter
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

# In units of the mean eigenvalue; the ends stand for the limits.
GRID = (1e-9, *(1e-4 * 3.0**step for step in range(22)), 1e10)


@dataclass(frozen=True)
class Loss:
    """Loss of a method's automatic choice in one configuration; accuracies in per cent, means over seeds.

    Attributes
    ----------
    experiment : str
        The data set.
    per_class, num_clients : int
        The configuration; 0 clients where the method does not depend on the split.
    method : str
        With its variant.
    automatic, best, fedncm : float
        Accuracy of the choice, of the best fixed value, and of FedNCM's head.
    factor : float
        The best fixed value, in mean eigenvalues.
    notes : int
        Seeds in which the head had a note.
    seeds : int
        How many.
    """

    experiment: str
    per_class: int
    num_clients: int
    method: str
    automatic: float
    best: float
    fedncm: float
    factor: float
    notes: int
    seeds: int


# The head of the automatic choice, its accuracy, and the accuracies on the grid, in per cent.
Trial = tuple[LinearHead, float, list[float]]


def measure(experiment: str, sizes: Sequence[int], num_clients: Sequence[int], seeds: int) -> Iterator[Loss]:
    """Yield the losses of one data set, method by method."""
    config = config_of(experiment)
    data, train = features_of(config), training_set(config.data)
    features, test = data.train.double(), data.test.double()
    for per_class in sizes:
        tried: dict[tuple[str, int], list[tuple[LinearHead, float, list[float], float]]] = {}
        for seed in range(seeds):
            index = balanced_subset(data, per_class, seed)
            sample = FeatureStatistics.from_features(features[index], data.train_labels[index], data.num_classes)
            found: dict[tuple[str, int], Trial] = {}
            if per_class or seed == 0:  # all samples are the same in every seed
                found = {(name, 0): trial for name, trial in _of_sums(sample, test, data).items()}
            for clients in (number for number in num_clients if number <= len(index)):
                parts = parts_of(train.subset(index.numpy()), config, clients, seed)
                trials = _of_clients(features[index], data.train_labels[index], parts, sample, test, data, config)
                found |= {(name, clients): trial for name, trial in trials.items()}
            fedncm = _accuracy(solve_ncm(sample), test, data)
            for key, trial in found.items():
                tried.setdefault(key, []).append((*trial, fedncm))
        for (name, clients), of_seeds in tried.items():
            heads, automatic, on_grid, fedncms = zip(*of_seeds, strict=True)
            means = np.mean(on_grid, axis=0)
            yield Loss(
                experiment,
                per_class,
                clients,
                name,
                automatic=round(float(np.mean(automatic)), 3),
                best=round(float(means.max()), 3),
                fedncm=round(float(np.mean(fedncms)), 3),
                factor=GRID[int(means.argmax())],
                notes=sum(bool(head.report.notes) for head in heads),
                seeds=len(heads),
            )


def _of_sums(sums: FeatureStatistics, test: Tensor, data: Features) -> dict[str, Trial]:
    """Return head, accuracy and the accuracies on the grid of the methods that see no clients."""
    assert sums.gram is not None
    scatter = sums.gram - class_mean_products(sums)
    freedom = {"total": sums.num_examples - 1, "within": max(sums.num_examples - int(sums.present.sum()), 1)}
    maps: dict[str, HeadMap] = {
        "fed3r": with_between_class,
        "fed3r without between-class": without_between_class,
        **{f"fedcgs {name}": discriminant(name, count) for name, count in freedom.items()},
    }
    heads = {
        "fed3r": solve_ridge(sums, ridge_lambda="auto"),
        "fed3r without between-class": solve_ridge(sums, ridge_lambda="auto", between_class=False),
        "fedcgs total": solve_gaussian(sums, covariance="total", shrinkage="auto"),
        "fedcgs within": solve_gaussian(sums, covariance="within", shrinkage="auto"),
    }
    found = curves(scatter, sums, maps, test, data)
    return {name: (head, _accuracy(head, test, data), found[name]) for name, head in heads.items()}


def _of_clients(
    features: Tensor,
    labels: Tensor,
    parts: Sequence[np.ndarray],
    sums: FeatureStatistics,
    test: Tensor,
    data: Features,
    config: AppConfig,
) -> dict[str, Trial]:
    """Return the same of FedCOF and FedRoot."""
    method = FedRootMethod(config.options_of("fedroot"))
    held = _sent(features, labels, parts, data.num_classes, method)
    rows, completed = held.rows(), method.inputs(held)
    assert completed.gram is not None
    totals = ClassTotals.of(rows)
    weights = (totals.counts - 1).clamp(min=0) / (totals.num_means - 1).clamp(min=1)
    heads = {"fedcof": solve_fedcof(rows, shrinkage="auto"), "fedroot": method.head(held)}
    of_rows = curves(row_scatter(rows, totals, weights), sums, {"fedcof": without_between_class}, test, data)
    of_root = curves(completed.gram - class_mean_products(completed), sums, {"fedroot": with_between_class}, test, data)
    return {name: (head, _accuracy(head, test, data), (of_rows | of_root)[name]) for name, head in heads.items()}


def _sent(
    features: Tensor, labels: Tensor, parts: Sequence[np.ndarray], num_classes: int, method: Method[Any]
) -> StatisticsSum:
    """Return the sums of FedRoot's server, with factors truncated as on the wire."""
    spec = method.specification
    assert spec.scatter is not None
    total = StatisticsSum(num_classes, features.shape[1], gram=False, keep_rows=True, scatter=True)
    for part in parts:
        index = torch.from_numpy(part)
        if len(index):
            client = spec.from_features(features[index], labels[index], num_classes)
            total.add(with_scatter(client, spec.scatter, bytes_without=0))
    return total


def curves(
    scatter: Tensor,
    sums: FeatureStatistics,
    maps: Mapping[str, HeadMap],
    test: Tensor,
    data: Features,
    grid: Sequence[float] = GRID,
) -> dict[str, list[float]]:
    """Return accuracies of heads on a grid of ridges; one eigendecomposition serves all.

    Parameters
    ----------
    scatter : Tensor
        (d, d) float64, within classes.
    sums : FeatureStatistics
        Whose class means and counts the heads are made of.
    maps : mapping
        From a head's name to how it is made.
    test : Tensor
        (n, d) float64 features of the data's test samples.
    data : Features
        Whose test labels count.
    grid : sequence of float
        Ridges in mean eigenvalues of the scatter.
    """
    present = sums.present.nonzero().squeeze(1)
    eigenvalues, vectors = torch.linalg.eigh(scatter)
    eigenvalues, unit = eigenvalues.clamp(min=0.0), float(scatter.trace()) / len(scatter)
    means, turned = vectors.T @ sums.class_means[present].T, test @ vectors
    counts = sums.class_counts[present].double()
    found: dict[str, list[float]] = {name: [] for name in maps}
    for factor in grid:
        shrunk = means / (eigenvalues + factor * (unit or 1.0)).unsqueeze(1)
        scores = turned @ shrunk
        for name, head in maps.items():
            transform, bias = head(means.T @ shrunk, shrunk.T @ shrunk, counts)
            predicted = present[(scores @ transform + bias).argmax(dim=1)]
            found[name].append(100 * float((predicted == data.test_labels).double().mean()))
    return found


def discriminant(covariance: str, freedom: int) -> HeadMap:
    """Return how the head is made of the class means and the scatter within classes."""

    def head(products: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        transform = torch.eye(len(counts), dtype=products.dtype, device=products.device)
        if covariance == "total":
            # (S + B + lambda I)^-1 M = H M (I + (D - n n^T / N) P)^-1, B the scatter between classes.
            between = torch.diag(counts) - torch.outer(counts, counts) / counts.sum()
            transform = torch.linalg.inv(transform + between @ products)
        own = (products * transform.T).sum(dim=1)  # the diagonal of P T
        return freedom * transform, torch.log(counts / counts.sum()) - 0.5 * freedom * own

    return head


def parts_of(dataset: Dataset, config: AppConfig, clients: int, seed: int) -> list[np.ndarray]:
    own = config.partition
    return partition(dataset, partitioner=own.partitioner, num_clients=clients, alpha=own.dirichlet_alpha, seed=seed)


def _accuracy(head: LinearHead, test: Tensor, data: Features) -> float:
    return 100 * float((head.predict(test) == data.test_labels).double().mean())


def balanced_subset(data: Features, per_class: int, seed: int) -> Tensor:
    """Return the indices of this many samples of every class, in their order; 0 for all."""
    if not per_class:
        return torch.arange(len(data.train_labels))
    shuffled = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(seed))
    kept = [shuffled[data.train_labels[shuffled] == label][:per_class] for label in range(data.num_classes)]
    return torch.cat(kept).sort().values


def table(losses: Sequence[Loss]) -> str:
    """Return a Markdown table: a line per method over all its configurations."""
    lines = [
        "| method | configurations | mean loss | worst loss | furthest below FedNCM | notes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method in dict.fromkeys(loss.method for loss in losses):
        own = [loss for loss in losses if loss.method == method]
        lost = [loss.best - loss.automatic for loss in own]
        below = [loss.fedncm - loss.automatic for loss in own if not loss.notes]
        noted = sum(loss.notes for loss in own) / sum(loss.seeds for loss in own)
        lines.append(
            f"| {method} | {len(own)} | {np.mean(lost):.2f} | {max(lost):.2f} | {max(below, default=math.nan):.2f} | "
            f"{100 * noted:.0f}% |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(5, 10, 100), seeds=5)
    parser.add_argument("--per-class", type=int, nargs="+", default=[0, 5, 20, 50])
    options = parser.parse_args(arguments)
    own = (options.per_class, options.clients, options.seeds)
    run(options, Loss, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
