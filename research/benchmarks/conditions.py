"""Condition numbers of the scatters between and within classes: section 4.3 of the FedCOF paper.

    python -m research.benchmarks.conditions "dataset=builtin"

The number is the largest eigenvalue over the smallest that is not zero. Scatters are added up in float64, and an
eigenvalue is zero that lies below the rounding of the largest; the second number rounds the same scatter to float32
and takes every eigenvalue above 0. One line of JSON per scatter is printed, then a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.statistics import FeatureStatistics
from research.benchmarks.features import config_of, features_of
from research.benchmarks.lines import parser_of, printed


@dataclass(frozen=True)
class Condition:
    """A scatter of one experiment: its rank, and its condition number as it is and rounded to float32."""

    experiment: str
    scatter: str
    rank: int
    exact: float
    float32: float


def condition_of(experiment: str, name: str, scatter: Tensor) -> Condition:
    """Return the line of a symmetric (d, d) float64 scatter."""
    exact = torch.linalg.eigvalsh(scatter)
    exact = exact[exact > len(scatter) * torch.finfo(exact.dtype).eps * exact[-1]]
    rounded = torch.linalg.eigvalsh(scatter.float())
    rounded = rounded[rounded > 0]
    return Condition(experiment, name, len(exact), float(exact[-1] / exact[0]), float(rounded[-1] / rounded[0]))


def measure(experiment: str) -> Iterator[Condition]:
    """Yield the scatter between classes, without the mean of all samples, and the one within them."""
    data = features_of(config_of(experiment))
    features = data.train.double()
    stats = FeatureStatistics.from_features(features, data.train_labels, data.num_classes)
    means = stats.class_means[data.train_labels]
    for name, scattered in (("between", means - stats.mean), ("within", features - means)):
        yield condition_of(experiment, name, scattered.T @ scattered)


def table(lines: Sequence[Condition]) -> str:
    """Write a Markdown table, a row per scatter."""
    written = ["| experiment | scatter | rank | condition number | in float32 |", "| --- | --- | ---: | ---: | ---: |"]
    for line in lines:
        written.append(f"| {line.experiment} | {line.scatter} | {line.rank} | {line.exact:.2g} | {line.float32:.2g} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("experiments", nargs="+", metavar="FILE.toml or 'key=value ...'")
    options = parser.parse_args(arguments)
    print(table(printed(line for experiment in options.experiments for line in measure(experiment))))


if __name__ == "__main__":
    main()
