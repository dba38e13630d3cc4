"""What FedRoot's two choices are worth: which directions clients send, and the shape of the energy that they leave out.

    python -m research.benchmarks.low_rank dataset=builtin conf/ag-news.toml --clients 5 10 100 --seeds 5

For every data set, split (iid, Dirichlet 0.1) and number of clients, alternatives are compared with the default: the
best accuracy on a grid of ridges, of the means over seeds of the split. All rules send as many directions in all as
``sqrt(n)``. A line of JSON per configuration is printed, and at the end a table of the gains in points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data import partition
from fedstats_app.data.clients import training_set
from fedstats_app.heads.class_scatter import class_mean_products, within_class_freedom
from fedstats_app.heads.fedroot import complete, shape_weight
from fedstats_app.heads.gaussian import discriminant
from fedstats_app.heads.regularisation import with_between_class
from fedstats_app.heads.row_scatter import ClassTotals, row_scatter
from fedstats_app.rank_rule import RankRule
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, ScatterFactor, ScatterSpec, StatisticsSpec
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run
from research.benchmarks.regularisers import curves

SPEC = StatisticsSpec(scatter=ScatterSpec(RankRule("full")))
# Partitioner and alpha.
SPLITS = {"iid": ("iid", 0.0), "dirichlet 0.1": ("dirichlet", 0.1)}
RIDGES = tuple(10.0 ** (step / 2) for step in range(-6, 7))
RULE, WEIGHT = "sqrt(n)", "w = q / (q + d/2)"
DEFAULT = f"{RULE}, {WEIGHT}"
# Every client's rows and complete factor.
Clients = list[tuple[ClassMeanRows, ScatterFactor]]


@dataclass(frozen=True)
class Compared:
    """One configuration.

    Attributes
    ----------
    experiment, split : str
        Data set and split.
    num_clients, seeds : int
        The means are over this many seeds.
    best : dict
        From head and alternative to the best accuracy on the grid, in per cent.
    """

    experiment: str
    split: str
    num_clients: int
    seeds: int
    best: dict[str, float]


def client_factors(features: Tensor, labels: Tensor, parts: Sequence[np.ndarray], num_classes: int) -> Clients:
    """Return every client's rows and complete factor; features (n, d) float64, labels (n,) int64."""
    found: Clients = []
    for part in parts:
        index = torch.from_numpy(part)
        if len(index):
            client = SPEC.from_features(features[index], labels[index], num_classes)
            assert client.scatter is not None
            found.append((client.rows, client.scatter))
    return found


def ranks(clients: Clients) -> dict[str, list[int]]:
    """Return, by rule, how many directions each client sends: as many in all as by ``sqrt(n)``."""
    sizes = [int(rows.num_examples) for rows, _ in clients]
    full = [len(factor) for _, factor in clients]
    energies = [np.array(factor.energies) for _, factor in clients]
    root = [min(round(math.sqrt(size)), most) for size, most in zip(sizes, full, strict=True)]

    def by_number(amount: float) -> list[int]:
        return [min(round(amount), most) for most in full]

    def by_size(amount: float) -> list[int]:
        return [min(round(amount * size), most) for size, most in zip(sizes, full, strict=True)]

    def by_share(amount: float) -> list[int]:
        return [min(int((np.cumsum(own) < amount * own.sum()).sum()) + 1, len(own)) for own in energies]

    def by_energy(amount: float) -> list[int]:
        return [int((own > math.exp(-amount)).sum()) for own in energies]

    total = sum(root)
    largest = math.log(max(float(own[0]) for own in energies if len(own)))
    return {
        RULE: root,
        "a number": _as_many(by_number, 0.0, max(full), total),
        "a share of n": _as_many(by_size, 0.0, 1.0, total),
        "a share of the energy": _as_many(by_share, 0.0, 1.0, total),
        "the largest of all": _as_many(by_energy, -largest, 60.0, total),
    }


def _as_many(rule: Callable[[float], list[int]], low: float, high: float, total: int) -> list[int]:
    """Return the ranks of a rule, rising in its amount, that come nearest to a total from below."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(rule(middle)) <= total else (low, middle)
    return rule(low)


def completions(clients: Clients, num_classes: int) -> dict[str, FeatureStatistics]:
    """Return the completed statistics by the name of the alternative."""
    rows = ClassMeanRows.concatenate([rows for rows, _ in clients])
    dim, totals = rows.feature_dim, ClassTotals.of(rows)
    freedom = int((totals.num_means - 1).clamp(min=0).sum())
    spread = row_scatter(rows, totals, torch.ones_like(totals.counts))
    shape = spread / spread.trace() if freedom else torch.eye(dim, dtype=torch.float64) / dim
    weights = {
        "w = 0": 0.0,
        "w = q / (q + 2d)": freedom / (freedom + 2 * dim),
        WEIGHT: shape_weight(freedom, dim),
        "w = q / (q + d/8)": freedom / (freedom + dim / 8),
        "w = 1": 1.0,
    }
    found = {}
    for rule, sent in ranks(clients).items():
        scatter, left_out = torch.zeros(dim, dim, dtype=torch.float64), 0.0
        for (_, factor), rank in zip(clients, sent, strict=True):
            kept = factor.truncated(rank, torch.float16)
            scatter.addmm_(kept.scaled().T, kept.scaled())
            left_out += kept.left_out
        known = complete(rows, scatter, 0.0)
        assert known.gram is not None
        for name in weights if rule == RULE else [WEIGHT]:
            weight = weights[name]
            spread_out = left_out * (weight * shape + (1 - weight) / dim * torch.eye(dim, dtype=torch.float64))
            found[f"{rule}, {name}"] = rows.summed(known.gram + spread_out)
    return found


def accuracies(statistics: FeatureStatistics, test: Tensor, data: Features) -> dict[str, list[float]]:
    """Return the accuracies of both heads on the grid of ridges."""
    assert statistics.gram is not None
    heads = {"ridge": with_between_class, "within": discriminant("within", within_class_freedom(statistics))}
    return curves(statistics.gram - class_mean_products(statistics), statistics, heads, test, data, RIDGES)


def measure(experiment: str, num_clients: Sequence[int], seeds: int) -> Iterator[Compared]:
    """Yield every split and number of clients of one data set."""
    config = config_of(experiment)
    data, train = features_of(config), training_set(config.data)
    features, test = data.train.double(), data.test.double()
    for split, (partitioner, alpha) in SPLITS.items():
        for clients in num_clients:
            curves_of: dict[str, list[list[float]]] = {}
            for seed in range(seeds):
                parts = partition(train, partitioner=partitioner, num_clients=clients, alpha=alpha or 1.0, seed=seed)
                found = client_factors(features, data.train_labels, parts, data.num_classes)
                for name, statistics in completions(found, data.num_classes).items():
                    for head, curve in accuracies(statistics, test, data).items():
                        curves_of.setdefault(f"{head}: {name}", []).append(curve)
            best = {name: round(float(np.mean(found, axis=0).max()), 3) for name, found in curves_of.items()}
            yield Compared(experiment, split, clients, seeds, best)


def table(lines: Sequence[Compared]) -> str:
    """Return a Markdown table: how much better than the default each alternative is, over all configurations."""
    written = [
        "| head | alternative | configurations | mean gain | least | most | better by 0.2 | worse by 0.2 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    bests = [line.best for line in lines]
    for name in bests[0]:
        head, alternative = name.split(": ")
        gains = [best[name] - best[f"{head}: {DEFAULT}"] for best in bests]
        alternative = alternative.removeprefix(f"{RULE}, ").removesuffix(f", {WEIGHT}")
        if f"{head}: {DEFAULT}" == name:
            if head == "ridge":
                continue
            alternative, gains = "instead of the ridge", [best[name] - best[f"ridge: {DEFAULT}"] for best in bests]
        counted = " | ".join(str(sum(sign * gain > 0.2 for gain in gains)) for sign in (1, -1))
        written.append(
            f"| {head} | {alternative} | {len(gains)} | {np.mean(gains):+.2f} | {min(gains):+.2f} | "
            f"{max(gains):+.2f} | {counted} |"
        )
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    options = experiments_of(__doc__, clients=(5, 10, 100), seeds=5).parse_args(arguments)
    run(options, Compared, lambda experiment: measure(experiment, options.clients, options.seeds), table)


if __name__ == "__main__":
    main()
