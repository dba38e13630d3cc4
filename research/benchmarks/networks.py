"""Networks and transforms of their features against each other, method by method, and the evidence that compares them.

    python -m research.benchmarks.networks "dataset=parquet:/data/flowers17 input-size=224" --clients 10 \
      --networks efficientnet_lite0 efficientnet_lite0^0.5 efficientnet_lite0+squeezenet1_1

An experiment is one of :func:`research.benchmarks.features.settings_of`. ``^POWER`` sets ``feature-power``, which is 1
without; ``=WEIGHTS`` sets ``backbone-weights``. Of every set and variant (those of :mod:`research.benchmarks.choices`)
all heads are solved with their automatic settings, from what clients would send without rounding. One line of JSON is
printed per set, variant and network: the accuracy of every head in per cent, mean over seeds, and the evidence of the
labels, by the Gram matrix and by FedRoot's completed one. The first table has the accuracies; the second what each
network gains over the first, mean and worst; the last line what is lost if the largest evidence chooses, and by always
taking one network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedstats_app.data.partition import _dirichlet as dirichlet
from fedstats_app.heads.evidence import label_evidence
from fedstats_app.methods import METHODS
from fedstats_app.statistics import StatisticsSpec, merge_specs
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.wire.statistics_records import with_scatter
from research.benchmarks.choices import VARIANTS, varied
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

METHODS_USED = {name: method.default() for name, method in METHODS.items()}


@dataclass(frozen=True)
class Network:
    """Accuracies in per cent by method, and evidences, of one network on a variant of a data set; means over seeds."""

    experiment: str
    variant: str
    network: str
    feature_dim: int
    accuracy: dict[str, float]
    evidence: float
    evidence_of_fedroot: float

    @property
    def best(self) -> float:
        """Accuracy of the best head."""
        return max(self.accuracy.values())


def measure(
    experiment: str, networks: Sequence[str], variants: Sequence[str], clients: int, seeds: int
) -> Iterator[Network]:
    """Yield every network on every variant that the number of samples allows."""
    for word in networks:
        network, _, weights = word.partition("=")
        name, _, power = network.partition("^")
        own = {"backbone": name, "backbone_weights": weights, "feature_power": float(power or 1)}
        data = features_of(config_of(experiment, **own))
        for variant in variants:
            if variant.isdecimal() and int(variant) >= len(data.train_labels) / data.num_classes:
                continue
            found = [solved(data, variant, clients, seed) for seed in range(seeds)]
            heads = {name: round(float(np.mean([accuracy[name] for accuracy, *_ in found])), 2) for name in METHODS}
            evidences = np.mean([evidence for _, *evidence in found], axis=0).round(4).tolist()
            yield Network(experiment, variant, network, data.train.shape[1], heads, *evidences)


def solved(data: Features, variant: str, clients: int, seed: int) -> tuple[dict[str, float], float, float]:
    """Return the accuracies of all heads, and both evidences."""
    index, labels = varied(data.train_labels, data.num_classes, variant, seed)
    total = summed(data.train[index].double(), labels, data.num_classes, clients, seed)
    accuracy = {name: 100.0 * data.accuracy(method.head(total)) for name, method in METHODS_USED.items()}
    completed = METHODS_USED["fedroot"].inputs(total)
    return accuracy, label_evidence(total.summed(gram=True)), label_evidence(completed)


def summed(features: Tensor, labels: Tensor, num_classes: int, clients: int, seed: int) -> StatisticsSum:
    """Return the sums of a server whose clients have a Dirichlet split, alpha 0.1."""
    spec: StatisticsSpec = merge_specs(method.specification for method in METHODS_USED.values())
    total = StatisticsSum(num_classes, features.shape[1], gram=True, keep_rows=True, scatter=True)
    for part in dirichlet(labels.numpy(), clients, 0.1, seed, shuffled=True):
        if len(part):
            client = spec.from_features(features[part], labels[part], num_classes)
            total.add(with_scatter(client, spec.scatter, bytes_without=0) if spec.scatter else client)
    return total


def table(lines: Sequence[Network]) -> str:
    """Return the tables as Markdown."""
    written = [f"| set | variant | network | d | {' | '.join(METHODS)} | evidence, FedRoot's |", "|---" * 10 + "|"]
    for line in lines:
        accuracies = " | ".join(f"{line.accuracy[name]:.1f}" for name in METHODS)
        written.append(
            f"| {line.experiment.split()[0]} | {line.variant} | {line.network} | {line.feature_dim} | {accuracies} | "
            f"{line.evidence:.3f}, {line.evidence_of_fedroot:.3f} |"
        )
    sets: dict[tuple[str, str], dict[str, Network]] = {}
    for line in lines:
        sets.setdefault((line.experiment, line.variant), {})[line.network] = line
    first, *others = networks = list(dict.fromkeys(line.network for line in lines))
    written += ["", f"| over {first}: mean, worst | {' | '.join(METHODS)} | best head |", "|---" * 7 + "|"]
    for other in others:
        cells = []
        for name in (*METHODS, ""):
            gains = [_accuracy(found[other], name) - _accuracy(found[first], name) for found in sets.values()]
            cells.append(f"{np.mean(gains):+.1f}, {min(gains):+.1f}")
        written.append(f"| {other} | {' | '.join(cells)} |")
    best = {key: max(line.best for line in found.values()) for key, found in sets.items()}
    chosen = {key: max(found.values(), key=lambda line: line.evidence) for key, found in sets.items()}
    rules = {"largest evidence": [best[key] - chosen[key].best for key in sets]}
    rules |= {f"always {name}": [best[key] - found[name].best for key, found in sets.items()] for name in networks}
    lost = [f"{rule} {np.mean(losses):.2f} ({max(losses):.1f})" for rule, losses in rules.items()]
    return "\n".join([*written, "", f"Loss to the best network, mean (worst): {'; '.join(lost)}"])


def _accuracy(line: Network, method: str) -> float:
    return line.accuracy[method] if method else line.best


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10,), seeds=3)
    parser.add_argument("--variants", nargs="+", default=["full"], choices=VARIANTS)
    parser.add_argument("--networks", nargs="+", default=["efficientnet_lite0", "efficientnet_lite0^0.5"])
    options = parser.parse_args(arguments)
    own = (options.networks, options.variants, options.clients[0], options.seeds)
    run(options, Network, lambda experiment: measure(experiment, *own), table)


if __name__ == "__main__":
    main()
