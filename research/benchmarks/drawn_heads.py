"""FedCGS's figure 2: its head, a softmax head on features drawn of its statistics, and one on all features.

    python -m research.benchmarks.drawn_heads "dataset=builtin" --seeds 3

Drawn are as many features of a class as it has samples, from its mean and the one covariance of all classes. The
softmax heads are trained as FedPFT's in the paper. One line of JSON per seed is printed, then a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedstats_app.heads import solve_gaussian
from fedstats_app.heads.scatter import class_mean_products
from fedstats_app.statistics import FeatureStatistics
from research.baselines import ClassMixtures, softmax_head
from research.baselines.drawing import drawn_samples
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run


@dataclass(frozen=True)
class Compared:
    """One seed: accuracy in per cent, by head."""

    experiment: str
    seed: int
    accuracy: dict[str, float]


def compared(data: Features, seed: int) -> dict[str, float]:
    """Return the accuracies of a data set's heads under one seed of draws and batches."""
    stats = FeatureStatistics.from_features(data.train.double(), data.train_labels, data.num_classes)
    assert stats.gram is not None
    present = stats.present.nonzero().squeeze(1)
    scatter = stats.gram - class_mean_products(stats)
    shared = scatter / max(stats.num_examples - len(present), 1)
    ones = torch.ones(len(present), 1, dtype=torch.float64)
    means, dim = stats.class_means[present].unsqueeze(1), stats.feature_dim
    gaussians = ClassMixtures(
        present, stats.class_counts[present], ones, means, shared.expand(len(present), 1, dim, dim)
    )
    drawn = drawn_samples(gaussians, stats.class_counts[present], (seed,))
    heads = {
        "FedCGS": solve_gaussian(stats, covariance="within", shrinkage="auto"),
        "softmax on drawn features": softmax_head(*drawn, data.num_classes, key=(seed,)),
        "softmax on all features": softmax_head(data.train, data.train_labels, data.num_classes, key=(seed,)),
    }
    return {name: 100 * data.accuracy(head) for name, head in heads.items()}


def measure(experiment: str, seeds: int) -> Iterator[Compared]:
    """Yield every seed of one experiment."""
    data = features_of(config_of(experiment))
    for seed in range(seeds):
        yield Compared(experiment, seed, compared(data, seed))


def table(lines: Sequence[Compared]) -> str:
    """Write a Markdown table: means over seeds, in brackets half of the 95% interval."""
    names = list(dict.fromkeys(line.experiment for line in lines))
    written = ["| head | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for head in lines[0].accuracy:
        of = [mean_and_half([line.accuracy[head] for line in lines if line.experiment == name]) for name in names]
        written.append(f"| {head} | " + " | ".join(f"{mean:.2f} ({half:.2f})" for mean, half in of) + " |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    options = experiments_of(__doc__, clients=(1,), seeds=3).parse_args(arguments)
    run(options, Compared, lambda one: measure(one, options.seeds), table)


if __name__ == "__main__":
    main()
