"""What a linear probe makes of its start: at the rate found and at a fixed one, and where the start is kept.

    python -m research.benchmarks.probe_start dataset=builtin made=0 \\
      "dataset=parquet:/data/sst2 backbone=all-MiniLM-L6-v2"

An experiment is a TOML file of run-config keys, ``key=value`` pairs in one word, or ``made=SEED``: features that are
drawn, rectified around ten centres far from 0. Plain averaging over cached features, as ``fine-tune = "probe"`` does
it, without Flower: one local epoch, batches of 16, 30 % of more than ten clients in a round. The split and the clients
of a round differ by seed. One line of JSON per data set, number of clients and head is printed, and a table of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedstats_app.data import Dataset, partition
from fedstats_app.data.clients import training_set
from fedstats_app.data.loading import unlabelled_texts
from fedstats_app.heads import LinearHead, solve_fedcof, solve_ncm, solve_ridge
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from fedstats_app.training.evaluation import losses_by_temperature
from fedstats_app.training.model import TunedModel
from fedstats_app.training.probe_rate import probe_rate, probe_step, typical_steps
from fedstats_app.training.samples import TensorSamples, batch_order
from fedstats_app.training.start_heads import random_head
from fedstats_app.training.temperature import best_temperature
from research.benchmarks.features import Features, config_of, features_of, settings_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

# What there was before anything was found, at temperature 1.
FIXED_RATE = 0.01
_SHARE, _MOST_AT_ONCE, _BATCH = 0.3, 10, 16


@dataclass(frozen=True)
class Probe:
    """One head in one configuration; accuracies in per cent, by seed.

    Attributes
    ----------
    experiment : str
        The data set.
    num_clients, rounds : int
        The configuration.
    head : str
        The start.
    start, fixed, last, kept : tuple of float
        Of the start, of the last round at the fixed rate, of the last at the rate found, and of what is kept of these.
    temperature, rate : float
        As found with the last seed.
    """

    experiment: str
    num_clients: int
    rounds: int
    head: str
    start: tuple[float, ...]
    fixed: tuple[float, ...]
    last: tuple[float, ...]
    kept: tuple[float, ...]
    temperature: float
    rate: float


def averaged(
    heads: Sequence[LinearHead], parts: Sequence[TensorSamples], rates: Sequence[float], rounds: int, seed: int
) -> list[LinearHead]:
    """Train heads by rounds of averaging, each at its own rate.

    A test compares it with :func:`fedstats_app.training.local.train_locally`, which takes one head at a time.
    """
    weight = torch.stack([head.weight.float() for head in heads])  # (V, C, d)
    bias = torch.stack([head.bias.float() for head in heads])
    with_samples = [number for number, part in enumerate(parts) if len(part.labels)]
    share = _SHARE if len(parts) > _MOST_AT_ONCE else 1.0
    for number in range(rounds):
        draw = np.random.default_rng([seed, number])
        chosen = draw.choice(with_samples, max(1, round(share * len(with_samples))), replace=False)
        total = sum(len(parts[client].labels) for client in chosen)
        sums = [torch.zeros_like(weight), torch.zeros_like(bias)]
        for client in chosen:
            trained = _trained(weight, bias, parts[client], torch.tensor(rates), (seed, int(client), number))
            for one, new in zip(sums, trained, strict=True):
                one += len(parts[client].labels) / total * new
        weight, bias = sums
    return [LinearHead(*head) for head in zip(weight.double(), bias.double(), strict=True)]


def _trained(
    weight: Tensor, bias: Tensor, samples: TensorSamples, rates: Tensor, key: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Return (V, C, d) weights and (V, C) biases after an epoch of SGD on one client's samples."""
    weight, bias = weight.clone(), bias.clone()
    num_heads, num_classes, dim = weight.shape
    for indices in batch_order(len(samples.labels), _BATCH, key, 0):
        inputs, labels = samples.inputs(indices), samples.labels[indices]
        logits = (inputs @ weight.view(-1, dim).T).view(-1, num_heads, num_classes) + bias
        slopes = torch.softmax(logits, dim=2)
        slopes[torch.arange(len(labels)), :, labels] -= 1.0
        slopes *= rates.unsqueeze(1) / len(labels)
        weight -= (slopes.view(len(labels), -1).T @ inputs).view(num_heads, num_classes, dim)
        bias -= slopes.sum(dim=0)
    return weight, bias


def made_features(seed: int) -> Features:
    """Return drawn features of ten classes, 6,000 samples to train and 2,000 to test, of 64 dimensions."""
    draw, dim = np.random.default_rng(seed), 64
    centres = 0.6 * draw.normal(size=(10, dim)) + 3.0 * draw.random(dim)
    labels = draw.integers(0, 10, 8000)
    noise = 1.5 * np.linspace(0.3, 2.5, dim) * draw.normal(size=(8000, dim))
    inputs = torch.from_numpy(np.maximum(centres[labels] + noise, 0.0)).float()
    classes = torch.from_numpy(labels)
    return Features(inputs[:6000], classes[:6000], inputs[6000:], classes[6000:], 10)


def data_of(experiment: str) -> tuple[Features, Dataset]:
    """Return an experiment's features, and its training samples as a data set that can be split."""
    settings = settings_of(experiment)
    if "made" in settings:
        features = made_features(int(str(settings["made"])))
        texts = unlabelled_texts([""] * len(features.train_labels))
        names = tuple(map(str, range(features.num_classes)))
        return features, replace(texts, labels=features.train_labels.numpy().copy(), class_names=names)
    config = config_of(experiment)
    return features_of(config), training_set(config.data)


def measure(
    experiment: str, data: Features, dataset: Dataset, clients: Sequence[int], seeds: int, rounds: int
) -> Iterator[Probe]:
    """Yield what becomes of every head in every configuration."""
    for num_clients in clients:
        by_seed = [dict(_of_seed(data, dataset, num_clients, seed, rounds)) for seed in range(seeds)]
        for name in by_seed[0]:
            start, fixed, last, kept = (tuple(one[name][column] for one in by_seed) for column in range(4))
            temperature, rate = by_seed[-1][name][4:]
            yield Probe(experiment, num_clients, rounds, name, start, fixed, last, kept, temperature, rate)


def _of_seed(
    data: Features, dataset: Dataset, num_clients: int, seed: int, rounds: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    indices = partition(dataset, partitioner="dirichlet", num_clients=num_clients, alpha=0.1, seed=seed)
    parts = [
        TensorSamples(data.train[torch.from_numpy(one)], data.train_labels[torch.from_numpy(one)]) for one in indices
    ]
    everything = TensorSamples(data.train, data.train_labels)
    statistics = FeatureStatistics.from_features(data.train, data.train_labels, data.num_classes)
    step = probe_step(statistics.class_counts, statistics.class_sums)
    assert step is not None
    steps = typical_steps((len(part.labels) for part in parts), _BATCH, 1)
    heads = _heads(data, parts, statistics, seed)
    losses = {
        name: losses_by_temperature(TunedModel(head, tune="probe"), everything, 4096) for name, head in heads.items()
    }
    temperatures = {name: 1.0 if name == "random" else best_temperature(losses[name]) for name in heads}
    rates = [
        probe_rate(step, num_steps=steps, made_classes=data.num_classes if name == "random" else 0) for name in heads
    ]
    divided = [
        replace(head, weight=head.weight / temperatures[name], bias=head.bias / temperatures[name])
        for name, head in heads.items()
    ]
    together = averaged([*divided, *heads.values()], parts, [*rates, *[FIXED_RATE] * len(heads)], rounds, seed)
    for index, (name, head) in enumerate(heads.items()):
        found, fixed = together[index], together[len(heads) + index]
        after = losses_by_temperature(TunedModel(found, tune="probe"), everything, 4096)
        kept = found if name == "random" or min(after) < min(losses[name]) else head
        scores = (100.0 * data.accuracy(one) for one in (head, fixed, found, kept))
        yield name, (*scores, temperatures[name], rates[index])


def _heads(
    data: Features, parts: Sequence[TensorSamples], statistics: FeatureStatistics, seed: int
) -> Mapping[str, LinearHead]:
    rows = [
        ClassMeanRows.from_features(part.inputs(torch.arange(len(part.labels))), part.labels, data.num_classes)
        for part in parts
        if len(part.labels)
    ]
    return {
        "random": random_head(data.num_classes, data.train.shape[1], seed=seed),
        "FedNCM": solve_ncm(statistics),
        "Fed3R": solve_ridge(statistics, ridge_lambda="auto"),
        "FedCOF": solve_fedcof(sum(rows[1:], rows[0]), shrinkage="auto"),
    }


def table(lines: Sequence[Probe]) -> str:
    """Return lines as Markdown: means over seeds, and what is gained over the start with its 95% interval."""
    rows = [
        "| data, clients, rounds | head | start | fixed | found | kept | gain | temperature, rate |",
        "|---" * 8 + "|",
    ]
    for one in lines:
        start, fixed, last, kept = (np.mean(scores) for scores in (one.start, one.fixed, one.last, one.kept))
        rows.append(
            f"| {one.experiment}, {one.num_clients}, {one.rounds} | {one.head} | {start:.2f} | {fixed:.2f} "
            f"| {last:.2f} | {kept:.2f} | {_interval(one)} | {one.temperature:.3g}, {one.rate:.3g} |"
        )
    return "\n".join(rows)


def _interval(one: Probe) -> str:
    """Return the mean gain of what is kept, and Student's interval of it over seeds."""
    mean, half = mean_and_half(np.subtract(one.kept, one.start).tolist())
    return f"{mean:+.2f}" if math.isnan(half) else f"{mean:+.2f} ± {half:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines of every experiment, and their table."""
    parser = experiments_of(__doc__, clients=(10, 100), seeds=3)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    own = (options.clients, options.seeds, options.rounds)
    run(options, Probe, lambda experiment: measure(experiment, *data_of(experiment), *own), table)


if __name__ == "__main__":
    main()
