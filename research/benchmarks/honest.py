"""False alarms: federations of honest clients alone, and the clients that a run names as harmful.

    python -m research.benchmarks.honest "dataset=parquet:/data/flowers17 backbone=squeezenet1_1" --clients 10 20 100

An experiment is one of :func:`research.benchmarks.features.settings_of`; its variants are those of
:mod:`research.benchmarks.choices`. A federation is a variant, a split (iid or Dirichlet 0.1), a number of clients and a
seed. One line of JSON is printed per federation, then a table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire import Limits
from research.benchmarks.attacks import ATTACKS, run
from research.benchmarks.choices import varied
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of
from research.benchmarks.lines import run as measure_all

VARIANTS = ("full", "10", "50", "tail", "noise")
SPLITS = ("iid", "dirichlet")


@dataclass(frozen=True)
class Federation:
    """One federation without hostile clients.

    Attributes
    ----------
    experiment, variant, split : str
        Data and network; which samples; how they are dealt.
    clients, seed : int
        How many, of which some may be empty, and the seed of samples and split.
    named, named_by_test : sequence of int
        Clients named as harmful: by the clients' class means, and by the server's test samples.
    seconds : float
        All of it.
    """

    experiment: str
    variant: str
    split: str
    clients: int
    seed: int
    named: Sequence[int]
    named_by_test: Sequence[int]
    seconds: float


def federation(
    data: Features, config: AppConfig, variant: str, split: str, clients: int, seed: int, experiment: str = ""
) -> Federation:
    """Measure one federation."""
    start = time.perf_counter()
    index, labels = varied(data.train_labels, data.num_classes, variant, seed)
    own = Features(data.train[index], labels, data.test, data.test_labels, data.num_classes)
    if split == "iid":
        parts = np.array_split(np.random.default_rng(seed).permutation(len(labels)), clients)
    else:
        parts = dirichlet(labels.numpy(), clients, 0.1, seed, shuffled=True)
    limits = Limits(2.0 * float(data.train.norm(dim=1).max()), config.federation.max_client_samples)
    _, _, ((named, _), (by_test, _)) = run(own, parts, config, ATTACKS["none"], 0, limits)
    seconds = round(time.perf_counter() - start, 1)
    return Federation(experiment, variant, split, clients, seed, named, by_test, seconds)


def measure(experiment: str, variants: Sequence[str], numbers: Sequence[int], seeds: int) -> Iterator[Federation]:
    """Yield all federations of one experiment that its number of samples allows."""
    config = config_of(experiment)
    data = features_of(config)
    for variant in variants:
        if variant.isdecimal() and int(variant) >= len(data.train_labels) / data.num_classes:
            continue
        for seed in range(seeds):
            for split in SPLITS:
                for clients in numbers:
                    yield federation(data, config, variant, split, clients, seed, experiment)


def table(lines: Sequence[Federation]) -> str:
    """Return by variant and split how many federations have an honest client named, as Markdown."""
    written = ["| samples | split | federations | with a client named, by clients | by test samples | who |"]
    written.append("|---|---|---:|---:|---:|---|")
    for variant, split in dict.fromkeys((line.variant, line.split) for line in lines):
        own = [line for line in lines if (line.variant, line.split) == (variant, split)]
        bad = [line for line in own if line.named or line.named_by_test]
        who = "; ".join(
            f"{line.experiment}, {line.clients} clients, seed {line.seed}: {[*line.named]} {[*line.named_by_test]}"
            for line in bad
        )
        counts = f"{sum(bool(line.named) for line in own)} | {sum(bool(line.named_by_test) for line in own)}"
        written.append(f"| {variant} | {split} | {len(own)} | {counts} | {who} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10, 20, 100), seeds=1)
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS], choices=VARIANTS)
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("fedstats_app").setLevel(logging.ERROR)
    own = (options.variants, options.clients, options.seeds)
    measure_all(options, Federation, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
