"""What one hostile client does to training, without and with the limits of the app, from FedNCM's head.

    python -m research.benchmarks.attacks_training
    python -m research.benchmarks.attacks_training conf/ag-news.toml --clients 10 20 100 --seeds 5 --clean

An experiment is a TOML file of run-config keys, or ``key=value`` pairs in one word; without any, the built-in sample.
The head is trained by FedMeZO, and by gradients under some of the server's optimisers, on features. The hostile client
has about as many samples as the mean; in every round it multiplies what an honest one would send. ``off`` is without
limits, ``outlier`` with the limits that leave clients out, ``clip`` with those that also shorten, ``default`` as the
app does it, which judges and shortens around what class counts foretell. FedMeZO has one limit, ``clip``. With
``--lying`` the hostile client has told the server other counts than it has. One line of JSON per row, and a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from fedstats_app.training.foretold import BIAS, WEIGHT, ClassMeans, common_factor, fitting
from fedstats_app.training.proportion import capped
from fedstats_app.training.start import TEMPERATURES, best_temperature
from fedstats_app.training.training_options import OptimizerOptions
from fedstats_app.wire.mezo import MezoReply
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run
from research.benchmarks.regularisers import balanced_subset, parts_of

# Per training: what shortens, and what leaves out.
_CLIP, _UPDATES = FedMeZOOptions().clip, OptimizerOptions()
LIMITS = {
    "fedmezo": {"off": (0.0, 0.0), "outlier": (0.0, 0.0), "clip": (_CLIP, 0.0), "default": (_CLIP, 0.0)},
    "gradients": {
        "off": (0.0, 0.0),
        "outlier": (0.0, _UPDATES.update_outlier),
        "clip": (_UPDATES.update_clip, _UPDATES.update_outlier),
        "default": (_UPDATES.update_clip, _UPDATES.update_outlier),
    },
}
# 0 for what is just below the limit, away from what is foretold if anything is: in the direction opposite to its own
# change, or, of FedMeZO, to all others' together, as large as the limit allows.
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
        What the hostile client multiplies by; 1 without one, 0 just below the limit.
    start, accuracy : float
        On the test samples, in per cent, before and after.
    rounds, left_out : int
        All, and those in which the hostile client was left out.
    honest_left_out : int
        How often others were.
    largest_honest : float
        The most that an honest client was in usual ones, over its allowance; what is above the limit is left out.
    seed : int
        Of subset and split.
    """

    training: str
    limits: str
    clients: int
    times: float
    start: float
    accuracy: float
    rounds: int
    left_out: int
    honest_left_out: int
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
    lying : bool
        Whether the hostile client has told its counts and sums of each class as those of the next.
    """

    def __init__(self, data: Features, kept: Tensor, parts: list[Tensor], *, lying: bool = False) -> None:
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
        told = self.labels.clone()
        if lying:
            own = self.parts[self.hostile]
            told[own] = (told[own] + 1) % data.num_classes
        sums = FeatureStatistics.from_features(features.double(), told, data.num_classes)
        labels = {
            client: torch.bincount(told[part], minlength=data.num_classes) for client, part in enumerate(self.parts)
        }
        self.means = ClassMeans.of_sums(sums.class_counts, sums.class_sums, labels)
        self.start = torch.cat([head.weight.float() / temperature, torch.zeros(data.num_classes, 1)], dim=1)

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

    def foretold(self, head: Tensor, changes: dict[int, Tensor]) -> dict[int, Tensor]:
        """Foretell the clients' changes, in proportion to what they are."""
        foretold = {}
        for client, number in self.counts.items():
            steps = math.ceil(number / BATCH)
            update = self.means.update(client, _named(head), {}, rate=RATE, steps=steps)
            foretold[client] = torch.cat([update[WEIGHT], update[BIAS].unsqueeze(1)], dim=1)
        named = {client: {"head": one} for client, one in foretold.items()}
        factor = common_factor(fitting({"head": change}, named[client]) for client, change in changes.items())
        return {client: factor * one for client, one in foretold.items()}


def _named(head: Tensor) -> dict[str, Tensor]:
    return {WEIGHT: head[:, :-1], BIAS: head[:, -1]}


def fedmezo(one: Federation, times: float, limits: str, rounds: int, seed: int) -> Row:
    """Train by FedMeZO, with exact slopes."""
    average = ScalarAverage("examples", LIMITS["fedmezo"][limits][0])
    generator, head = torch.Generator().manual_seed(seed), one.start.clone()
    spread = torch.softmax(one.inputs @ head.T, 1)
    rate = 0.5 / float((one.inputs.square().sum(1) * (spread * (1 - spread)).sum(1)).mean())
    counts = torch.tensor([one.counts[client] for client in one.counts]).float()
    for _ in range(rounds):
        direction = torch.randint(0, 2, head.shape, generator=generator).float() * 2 - 1
        slopes = (one.residuals(head) * (one.inputs @ direction.T)).sum(1)
        means = torch.zeros(len(counts)).index_add_(0, one.owner, slopes) / counts
        said = {client: float(value) * (times if client == one.hostile else 1.0) for client, value in enumerate(means)}
        if times == JUST_BELOW:
            said[one.hostile] = -math.copysign(1e9, float(means @ counts))
        taken = average.take({client: MezoReply((said[client],), one.counts[client], b"") for client in said})
        head -= rate * taken.means[0] * direction
    return _row(one, "fedmezo", limits, times, head, rounds, [], 0.0, seed)


def by_gradients(optimizer: str) -> Callable[[Federation, float, str, int, int], Row]:
    """Make a training by SGD on the clients and an optimiser on the server."""

    def train(one: Federation, times: float, limits: str, rounds: int, seed: int) -> Row:
        clip, outlier = LIMITS["gradients"][limits]
        generator, head, left_out, largest = torch.Generator().manual_seed(seed), one.start.clone(), [], 0.0
        server = _server(optimizer)
        for _ in range(rounds):
            mu = PROXIMAL_MU if optimizer == "fedprox" else 0.0
            changes = {client: one.locally(head, client, mu, generator) for client in one.counts}
            foretold = one.foretold(head, changes) if limits == "default" else dict.fromkeys(changes, torch.zeros(()))
            if times == JUST_BELOW:
                usual = times_usual(_away(changes, foretold), one.counts)[one.hostile]
                size = 0.97 * LIMITS["gradients"]["outlier"][1] * _away(changes, foretold)[one.hostile] / usual
                own = changes[one.hostile]
                changes[one.hostile] = foretold[one.hostile] - size * own / own.norm()
            else:
                changes[one.hostile] *= times
            away = _away(changes, foretold)
            found = times_usual(away, one.counts)
            shorter = times_usual(away, one.counts, steps=False) if limits == "default" else found
            out = [client for client, size in found.items() if size > outlier > 0.0]
            left_out += out
            largest = max([largest, *(size for client, size in found.items() if times == 1 or client != one.hostile)])
            kept = {client: change for client, change in changes.items() if client not in out}
            for client, change in kept.items():
                if shorter[client] > clip > 0.0:
                    kept[client] = foretold[client] + (change - foretold[client]) * (clip / shorter[client])
            weights = capped({client: one.counts[client] for client in kept}, 1.0)
            total = torch.stack([weights[client] * change for client, change in kept.items()]).sum(0)
            head = server(head, total / sum(weights.values()))
        return _row(one, optimizer, limits, times, head, rounds, left_out, largest, seed)

    return train


def _away(changes: dict[int, Tensor], foretold: dict[int, Tensor]) -> dict[int, float]:
    return {client: float((change - foretold[client]).norm()) for client, change in changes.items()}


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


TRAININGS = {
    "fedmezo": (fedmezo, 200),
    **{name: (by_gradients(name), 15) for name in ("fedavg", "fedprox", "fedadam")},
}


def _row(
    one: Federation,
    name: str,
    limits: str,
    times: float,
    head: Tensor,
    rounds: int,
    out: list[int],
    largest: float,
    seed: int,
) -> Row:
    hostile = sum(client == one.hostile for client in out) if times != 1 else 0
    accuracy, start = one.accuracy(head), one.accuracy(one.start)
    honest = len(out) - hostile
    return Row(name, limits, len(one.counts), times, start, accuracy, rounds, hostile, honest, round(largest, 2), seed)


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
    lying: bool = False,
    times: tuple[float, ...] = TIMES,
) -> Iterator[Row]:
    """Yield the rows of one data set; with ``clean`` only those without a hostile client."""
    data, dataset = features_of(config), training_set(config.data)
    for number in clients:
        for seed in range(seeds):
            kept = balanced_subset(data, per_class, seed)
            parts = parts_of(dataset.subset(kept.numpy()), config, number, seed)
            one = Federation(data, kept, [torch.from_numpy(part) for part in parts], lying=lying)
            for name in trainings:
                training, rounds = TRAININGS[name]
                for multiplied in (1.0,) if clean else (1.0, *times):
                    for limits in LIMITS["gradients"]:
                        yield training(one, multiplied, limits, rounds, seed)


def table(rows: Sequence[Row]) -> str:
    """Return the rows of all limits beside each other, means over seeds."""
    lines = [
        "| training | clients | times | off | outlier | left out | clip | default | honest left out | largest honest |",
        "|---" * 10 + "|",
    ]
    for key in dict.fromkeys((row.training, row.clients, row.times) for row in rows):
        of = {
            limits: [row for row in rows if (row.training, row.clients, row.times, row.limits) == (*key, limits)]
            for limits in LIMITS["gradients"]
        }
        mean = {limits: sum(row.accuracy for row in some) / len(some) for limits, some in of.items()}
        limited = [row for limits, some in of.items() if limits != "off" for row in some]
        share = sum(row.left_out for row in of["outlier"]) / sum(row.rounds for row in of["outlier"])
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]:g} | {mean['off']:.1f} | {mean['outlier']:.1f} | {100 * share:.0f}% | "
            f"{mean['clip']:.1f} | {mean['default']:.1f} | {sum(row.honest_left_out for row in limited)} | "
            f"{max(row.largest_honest for row in limited):.1f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10, 20, 100), seeds=1)
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--per-class", type=int, default=50)
    parser.add_argument("--clean", action="store_true", help="only without a hostile client")
    parser.add_argument("--lying", action="store_true", help="the hostile client has told each class as the next")
    parser.add_argument("--times", nargs="+", type=float, default=TIMES, help="0: just below the limits")
    options = parser.parse_args(arguments)
    own = (options.trainings, options.clients, options.per_class, options.seeds)
    how = {"clean": options.clean, "lying": options.lying, "times": tuple(options.times)}
    run(options, Row, lambda experiment: measure(config_of(experiment), *own, **how), table)


if __name__ == "__main__":
    main()
