"""FedCGS's figure 2: its head, a softmax head on features drawn of its statistics, and one on all features.

    python -m research.benchmarks.drawn_heads "dataset=builtin" --seeds 3

Drawn are as many features of a class as it has samples, from its mean and the one covariance of all classes: by default
that within classes; ``fedcgs.covariance=total fedcgs.shrinkage=0.0`` is the paper's. The softmax heads are trained as
FedPFT's in the paper. One line of JSON per seed is printed, then a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedstats_app.heads import solve_gaussian
from fedstats_app.heads.scatter import class_mean_products, mean_product, needed_gram, within_class_freedom
from fedstats_app.methods.fedcgs import FedCGSOptions
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


def compared(data: Features, seed: int, options: FedCGSOptions) -> dict[str, float]:
    """Return the accuracies of a data set's heads under one seed of draws and batches.

    Of the options, the covariance is that of head and draws, and the shrinkage that of the head.
    """
    stats = FeatureStatistics.from_features(data.train.double(), data.train_labels, data.num_classes)
    present, gram = stats.present.nonzero().squeeze(1), needed_gram(stats, "FedCGS")
    if options.covariance == "total":
        shared = (gram - mean_product(stats)) / max(stats.num_examples - 1, 1)
    else:
        shared = (gram - class_mean_products(stats)) / max(within_class_freedom(stats), 1)
    ones = torch.ones(len(present), 1, dtype=torch.float64)
    means, dim = stats.class_means[present].unsqueeze(1), stats.feature_dim
    gaussians = ClassMixtures(
        present, stats.class_counts[present], ones, means, shared.expand(len(present), 1, dim, dim)
    )
    drawn = drawn_samples(gaussians, stats.class_counts[present], (seed,))
    heads = {
        "FedCGS": solve_gaussian(stats, covariance=options.covariance, shrinkage=options.shrinkage),
        "softmax on drawn features": softmax_head(*drawn, data.num_classes, key=(seed,)),
        "softmax on all features": softmax_head(data.train, data.train_labels, data.num_classes, key=(seed,)),
    }
    return {name: 100 * data.accuracy(head) for name, head in heads.items()}


def measure(experiment: str, seeds: int) -> Iterator[Compared]:
    """Yield every seed of one experiment."""
    config = config_of(experiment)
    data, options = features_of(config), config.options_of("fedcgs")
    for seed in range(seeds):
        yield Compared(experiment, seed, compared(data, seed, options))


def table(lines: Sequence[Compared]) -> str:
    """Write a Markdown table: means over seeds, in brackets half of the 95% interval."""
    names = list(dict.fromkeys(line.experiment for line in lines))
    written = ["| head | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for head in lines[0].accuracy:
        means = [mean_and_half([line.accuracy[head] for line in lines if line.experiment == name]) for name in names]
        written.append(f"| {head} | " + " | ".join(f"{mean:.2f} ({half:.2f})" for mean, half in means) + " |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    options = experiments_of(__doc__, clients=(1,), seeds=3).parse_args(arguments)
    run(options, Compared, lambda experiment: measure(experiment, options.seeds), table)


if __name__ == "__main__":
    main()
