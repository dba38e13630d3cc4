"""One client's class counts under the noise of FedCOF's equation 23: the paper's figure 7.

    python -m research.benchmarks.count_noise "dataset=parquet:/data/cifar100 label-column=fine_label"

Prints each class's count as it is, and with uniform and Laplace noise at epsilon 0.1: means and deviations over draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedstats_app.data.clients import partitions, training_set
from research.baselines.fedcof_variants import CountNoise, draw_noise
from research.benchmarks.features import config_of
from research.benchmarks.lines import experiments_of, run

KINDS: tuple[CountNoise, ...] = ("uniform", "laplace")


@dataclass(frozen=True)
class Counts:
    """One class of the client: its name, its count, and the noisy counts of every draw by kind; below 0 they are 0."""

    name: str
    count: int
    noisy: dict[str, list[float]]


def measure(experiment: str, num_clients: int, client: int, epsilon: float, seeds: int) -> Iterator[Counts]:
    """Yield the classes that a client of a split has."""
    config = config_of(experiment, num_clients=num_clients)
    dataset = training_set(config.data)
    own = np.array(dataset.labels)[partitions(config.data, config.partition, config.run.seed)[client]]
    classes, found = np.unique(own, return_counts=True)
    counts = torch.from_numpy(found)
    noise = {
        kind: [draw_noise(kind, epsilon, counts, torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        for kind in KINDS
    }
    for place, label in enumerate(classes.tolist()):
        noisy: dict[str, list[float]] = {
            kind: [max(0.0, float(found[place] + drawn[place])) for drawn in draws] for kind, draws in noise.items()
        }
        yield Counts(dataset.class_names[label], int(found[place]), noisy)


def table(lines: Sequence[Counts]) -> str:
    """Write a Markdown table: means over draws, in brackets their standard deviation."""
    written = ["| class | samples | " + " | ".join(KINDS) + " |", "| --- | ---: |" + " ---: |" * len(KINDS)]
    for line in lines:
        cells = [f"{np.mean(line.noisy[kind]):.1f} ({np.std(line.noisy[kind]):.1f})" for kind in KINDS]
        written.append(f"| {line.name} | {line.count} | {' | '.join(cells)} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(100,), seeds=5)
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--epsilon", type=float, default=0.1)
    given = parser.parse_args(arguments)
    run(
        given,
        Counts,
        lambda experiment: measure(experiment, given.clients[0], given.client, given.epsilon, given.seeds),
        table,
    )


if __name__ == "__main__":
    main()
