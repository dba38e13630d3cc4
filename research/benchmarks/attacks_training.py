"""Effect of one hostile client on training, without and with the limits of the app, from FedNCM's head.

    python -m research.benchmarks.attacks_training
    python -m research.benchmarks.attacks_training conf/ag-news.toml --clients 10 20 100 --seeds 5 --clean

An experiment is a TOML file of run-config keys, or ``key=value`` pairs in one word; without any, the built-in sample.
The head is trained by FedMeZO, and by gradients under some of the server's optimisers, on features. The hostile client
has about as many samples as the mean; in every round it multiplies what an honest one would send. ``off`` is without
limits, ``default`` with the app's: updates and scalars are shortened to the usual size, and one client's share is
capped. One line of JSON per row, and a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.data.clients import training_set
from fedstats_app.fedmezo.average import ScalarAverage
from fedstats_app.fedmezo.mezo_options import FedMeZOOptions
from fedstats_app.heads import solve_ncm
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.strategies.fine_tuning import times_usual
from fedstats_app.training.proportion import capped, largest_share
from fedstats_app.training.start import TEMPERATURES, best_temperature
from fedstats_app.training.training_options import OptimizerOptions
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run
from research.benchmarks.regularisers import balanced_subset, parts_of

# Per training: off, or what shortens.
LIMITS = {
    "fedmezo": {"off": 0.0, "default": FedMeZOOptions().clip},
    "gradients": {"off": 0.0, "default": OptimizerOptions().update_clip},
}
# 0 for what the limit lets through: in the direction opposite to its own change, or, of FedMeZO, to all others'
# together, as large as the limit allows.
JUST_BELOW = 0.0
TIMES = (JUST_BELOW, -10.0, -1e9)
PROXIMAL_MU, BATCH, RATE = 0.01, 16, 0.01


@dataclass(frozen=True)
class Row:
    """One training.

    Attributes
    ----------
    training, limits : str
        How, and under which limits.
    clients : int
        Those with samples.
    times : float
        Factor of the hostile client; 1 without one, 0 just below the limit.
    start, accuracy : float
        On the test samples, in per cent, before and after.
    cut : float
        Share of the rounds in which the hostile client was shortened.
    largest_honest : float
        The most that an honest client was in usual ones, over its allowance; what is above the limit is shortened.
    seed : int
        Of subset and split.
    """

    training: str
    limits: str
    clients: int
    times: float
    start: float
    accuracy: float
    cut: float
    largest_honest: float
    seed: int


class Federation:
    """Features spread over clients, and a head that is trained: weights (C, d) and the bias as the last column.

    Parameters
    ----------
    data : Features
        Of the whole data set.
    kept : Tensor
        (n,) indices of the training samples that are used.
    parts : list of Tensor
        Each client's indices into these.
    """

    def __init__(self, data: Features, kept: Tensor, parts: list[Tensor]) -> None:
        self.test, self.test_labels, self.num_classes = _with_one(data.test), data.test_labels, data.num_classes
        features, self.labels = data.train[kept], data.train_labels[kept]
        self.inputs = _with_one(features)
        self.parts = [part for part in parts if len(part)]
        self.counts = {client: len(part) for client, part in enumerate(self.parts)}
        self.owner = torch.empty(len(kept), dtype=torch.int64)
        for client, part in enumerate(self.parts):
            self.owner[part] = client
        mean = len(kept) / len(self.parts)
        self.hostile = min(self.counts, key=lambda client: abs(self.counts[client] - mean))
        head = solve_ncm(FeatureStatistics.from_features(features.double(), self.labels, data.num_classes))
        logits = features @ head.weight.float().T
        temperature = best_temperature([float(F.cross_entropy(logits / t, self.labels)) for t in TEMPERATURES])
        self.start = torch.cat([head.weight.float() / temperature, torch.zeros(data.num_classes, 1)], dim=1)

    def weights(self, limits: str) -> dict[int, int]:
        """Return what clients count for in an average."""
        return self.counts if limits == "off" else capped(self.counts, largest_share(len(self.counts)))

    def accuracy(self, head: Tensor) -> float:
        """Return the accuracy on the test samples, in per cent; 0 where a number is not finite."""
        logits = self.test @ head.T
        right = (logits.argmax(1) == self.test_labels).double().mean() if bool(logits.isfinite().all()) else 0.0
        return round(100 * float(right), 2)

    def residuals(self, head: Tensor) -> Tensor:
        """Return the derivative of each sample's loss by its logits, (n, C)."""
        return torch.softmax(self.inputs @ head.T, 1) - F.one_hot(self.labels, self.num_classes)

    def locally(self, head: Tensor, client: int, mu: float, generator: torch.Generator) -> Tensor:
        """Return the change of the head in a client's epoch of SGD."""
        inputs, labels, trained = self.inputs[self.parts[client]], self.labels[self.parts[client]], head.clone()
        order = torch.randperm(len(labels), generator=generator)
        for batch in torch.split(order, BATCH):
            residuals = torch.softmax(inputs[batch] @ trained.T, 1) - F.one_hot(labels[batch], self.num_classes)
            trained -= RATE * (residuals.T @ inputs[batch] / len(batch) + mu * (trained - head))
        return trained - head


def fedmezo(federation: Federation, times: float, limits: str, rounds: int, seed: int) -> Row:
    """Train by FedMeZO, with exact slopes."""
    average = ScalarAverage("examples", LIMITS["fedmezo"][limits])
    generator, head = torch.Generator().manual_seed(seed), federation.start.clone()
    spread = torch.softmax(federation.inputs @ head.T, 1)
    rate = 0.5 / float((federation.inputs.square().sum(1) * (spread * (1 - spread)).sum(1)).mean())
    counts = torch.tensor([federation.counts[client] for client in federation.counts]).float()
    for _ in range(rounds):
        direction = torch.randint(0, 2, head.shape, generator=generator).float() * 2 - 1
        slopes = (federation.residuals(head) * (federation.inputs @ direction.T)).sum(1)
        means = torch.zeros(len(counts)).index_add_(0, federation.owner, slopes) / counts
        sent = {
            client: float(value) * (times if client == federation.hostile else 1.0)
            for client, value in enumerate(means)
        }
        if times == JUST_BELOW:
            sent[federation.hostile] = -math.copysign(1e9, float(means @ counts))
        taken = average.take({client: (value,) for client, value in sent.items()}, federation.weights(limits))
        head -= rate * taken.means[0] * direction
    return _row(federation, "fedmezo", limits, times, head, 0.0, 0.0, seed)


def by_gradients(optimizer: str) -> Callable[[Federation, float, str, int, int], Row]:
    """Make a training by SGD on the clients and an optimiser on the server."""

    def train(federation: Federation, times: float, limits: str, rounds: int, seed: int) -> Row:
        clip = LIMITS["gradients"][limits]
        generator, head, cut, largest = torch.Generator().manual_seed(seed), federation.start.clone(), 0, 0.0
        server, weights = _server(optimizer), federation.weights(limits)
        for _ in range(rounds):
            mu = PROXIMAL_MU if optimizer == "fedprox" else 0.0
            changes = {client: federation.locally(head, client, mu, generator) for client in federation.counts}
            changes[federation.hostile] *= -1e9 if times == JUST_BELOW else times
            lengths = {client: float(change.norm()) for client, change in changes.items()}
            found = times_usual(lengths, federation.counts)
            largest = max(
                [largest, *(size for client, size in found.items() if times == 1 or client != federation.hostile)]
            )
            shortened = {
                client: change * (clip / found[client] if found[client] > clip > 0.0 else 1.0)
                for client, change in changes.items()
            }
            cut += found[federation.hostile] > clip > 0.0
            total = torch.stack([weights[client] * change for client, change in shortened.items()]).sum(0)
            head = server(head, total / sum(weights.values()))
        return _row(federation, optimizer, limits, times, head, cut / rounds, largest, seed)

    return train


def _server(optimizer: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the server's step: averaging, or FedAdam as Flower has it."""
    if optimizer != "fedadam":
        return lambda head, change: head + change
    first, second = torch.zeros(()), torch.zeros(())

    def step(head: Tensor, change: Tensor) -> Tensor:
        nonlocal first, second
        first, second = 0.9 * first + 0.1 * change, 0.99 * second + 0.01 * change.square()
        return head + 0.01 * first / (second.sqrt() + 1e-3)

    return step


TRAININGS = {"fedmezo": (fedmezo, 200), **{name: (by_gradients(name), 15) for name in ("fedavg", "fedprox", "fedadam")}}


def _row(
    federation: Federation, name: str, limits: str, times: float, head: Tensor, cut: float, largest: float, seed: int
) -> Row:
    accuracy, start = federation.accuracy(head), federation.accuracy(federation.start)
    return Row(name, limits, len(federation.counts), times, start, accuracy, cut, round(largest, 2), seed)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones(len(features), 1)], dim=1)


def measure(
    config: AppConfig,
    trainings: list[str],
    clients: list[int],
    per_class: int,
    seeds: int,
    *,
    clean: bool = False,
    times: tuple[float, ...] = TIMES,
) -> Iterator[Row]:
    """Yield the rows of one data set; with ``clean`` only those without a hostile client."""
    data, dataset = features_of(config), training_set(config.data)
    for number in clients:
        for seed in range(seeds):
            kept = balanced_subset(data, per_class, seed)
            parts = parts_of(dataset.subset(kept.numpy()), config, number, seed)
            federation = Federation(data, kept, [torch.from_numpy(part) for part in parts])
            for name in trainings:
                training, rounds = TRAININGS[name]
                for multiplied in (1.0,) if clean else (1.0, *times):
                    for limits in LIMITS["gradients"]:
                        yield training(federation, multiplied, limits, rounds, seed)


def table(rows: Sequence[Row]) -> str:
    """Return the rows of all limits beside each other, means over seeds."""
    lines = ["| training | clients | times | off | default | cut | largest honest |", "|---" * 7 + "|"]
    for key in dict.fromkeys((row.training, row.clients, row.times) for row in rows):
        own = [row for row in rows if (row.training, row.clients, row.times) == key]
        off, default = ([row.accuracy for row in own if row.limits == limits] for limits in LIMITS["gradients"])
        cut = [row.cut for row in own if row.limits == "default"]
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]:g} | {fmean(off):.1f} | {fmean(default):.1f} | "
            f"{100 * fmean(cut):.0f}% | {max(row.largest_honest for row in own):.1f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10, 20, 100), seeds=1)
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--per-class", type=int, default=50)
    parser.add_argument("--clean", action="store_true", help="only without a hostile client")
    parser.add_argument("--times", nargs="+", type=float, default=TIMES, help="0: as far as the limits let it")
    options = parser.parse_args(arguments)
    own = (options.trainings, options.clients, options.per_class, options.seeds)
    how = {"clean": options.clean, "times": tuple(options.times)}
    run(options, Row, lambda experiment: measure(config_of(experiment), *own, **how), table)


if __name__ == "__main__":
    main()
