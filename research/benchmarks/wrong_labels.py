"""Labels that are wrong, found by the margins of `fedstats inspect`: a fifth of them changed at random.

    python -m research.benchmarks.wrong_labels "dataset=parquet:/data/signs input-size=224"

An experiment is one of :func:`research.benchmarks.features.settings_of`. One line of JSON is printed per experiment and
seed: of all sites' labels a fifth is changed and Fed3R's head solved on the changed ones. Then the labels of one site
alone are changed, in turn of each, and it is named if its share of negative margins is the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fedstats_app.heads import solve_ridge
from fedstats_app.heads.scores import label_margins
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

WRONG, FIRST = 0.2, 0.1


@dataclass(frozen=True)
class Trial:
    """One draw of wrong labels.

    Attributes
    ----------
    experiment, seed
        Data and network; what drew the labels.
    of_k, of_first_tenth : float
        Share of wrong labels among as many of the lowest margins as there are wrong ones, and among a tenth of all.
    named, sites : int
        Sites with wrong labels that had the largest share of negative margins, and all.
    clean : float
        Share of negative margins where no label was changed.
    """

    experiment: str
    seed: int
    of_k: float
    of_first_tenth: float
    named: int
    sites: int
    clean: float


def margins(features: Features, labels: Tensor) -> Tensor:
    """Return the margins of labels under the head of these labels."""
    total = FeatureStatistics.from_features(features.train, labels, features.num_classes)
    return label_margins(solve_ridge(total, ridge_lambda="auto").logits(features.train), labels)


def changed(labels: Tensor, among: Tensor, num_classes: int, draw: torch.Generator) -> Tensor:
    """Return labels of which a fifth, among those at some positions, are of another class at random."""
    chosen = among[torch.randperm(len(among), generator=draw)[: round(WRONG * len(among))]]
    shifts = torch.randint(1, num_classes, (len(chosen),), generator=draw)
    return labels.index_copy(0, chosen, (labels[chosen] + shifts) % num_classes)


def trial(experiment: str, features: Features, seed: int, sites: int) -> Trial:
    """Change labels everywhere, and then at one site after another."""
    draw, true = torch.Generator().manual_seed(seed), features.train_labels
    everyone = torch.arange(len(true))
    labels = changed(true, everyone, features.num_classes, draw)
    order, wrong = margins(features, labels).argsort(stable=True), labels != true
    of_k, of_first = (float(wrong[order[:n]].double().mean()) for n in (int(wrong.sum()), round(FIRST * len(true))))
    site = everyone[torch.randperm(len(true), generator=draw)] % sites
    named = 0
    for bad in range(sites):
        own = torch.nonzero(site == bad).flatten()
        negative = margins(features, changed(true, own, features.num_classes, draw)) < 0
        shares = torch.stack([negative[site == other].double().mean() for other in range(sites)])
        named += int(shares.argmax()) == bad
    clean = float((margins(features, true) < 0).double().mean())
    return Trial(experiment, seed, of_k, of_first, named, sites, clean)


def table(lines: Sequence[Trial]) -> str:
    """Make the Markdown table: means over seeds, and the worst."""
    rows = ["| data | of k | of the first tenth | sites named | negative without a change |", "|---|---|---|---|---|"]
    for name, group in groupby(lines, lambda line: line.experiment):
        own = list(group)
        shares = [
            f"{100 * sum(values) / len(values):.1f} (least {100 * min(values):.1f})"
            for values in ([line.of_k for line in own], [line.of_first_tenth for line in own])
        ]
        named = f"{sum(line.named for line in own)} of {sum(line.sites for line in own)}"
        rows.append(f"| {name} | {shares[0]} | {shares[1]} | {named} | {100 * own[0].clean:.1f} % |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line of JSON per trial, then the table."""
    options = experiments_of(__doc__, clients=[10], seeds=5).parse_args(argv)

    def measure(experiment: str) -> Iterator[Trial]:
        features = features_of(config_of(experiment))
        for sites in options.clients:
            yield from (trial(experiment, features, seed, sites) for seed in range(options.seeds))

    run(options, Trial, measure, table)


if __name__ == "__main__":
    main()
