"""Accuracy and megabytes of the closed-form heads beside those of the baselines, over seeds of the split.

    python -m research.benchmarks.baselines dataset=builtin --clients 100 --seeds 5 \\
      --picture research/images/baselines.png

FedPFT as in FedCGS's tables 1 and 2 is that of its ten diagonal Gaussians:

    python -m research.benchmarks.baselines "dataset=hub:uoft-cs/cifar10 label-column=label backbone=resnet18 \\
      input-size=32 partitioner=fedcgs dirichlet-alpha=0.1" --clients 10 --seeds 3 --only fedpft

Our methods answer through the app's own messages, so their bytes are those that a run sends. The baselines are
simulated on the same features: they send what `research.baselines` says, in the precision named, and bytes are
those of the arrays. A line of JSON per seed is printed, then a table (means, in brackets half of the 95% interval by
Student's t), and a picture of every experiment is drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.data.paths import without_folders
from fedstats_app.methods import display_name
from fedstats_app.report.advice import Candidate
from fedstats_app.report.plots.first_stage import CostPoint
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.training.training_options import LocalOptions
from fedstats_app.wire import read_statistics_request, statistics_reply
from research.baselines import (
    ClassMixtures,
    average_heads,
    ccvr_samples,
    class_gaussians,
    drawn_samples_of_all,
    ensemble_probabilities,
    fitted_mixtures,
    softmax_head,
)
from research.baselines.mixtures import Covariance
from research.baselines.mlp_head import federated_average, mlp_head
from research.benchmarks.answers import ask
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, mean_and_half, run
from research.formulas import TableSizes, formula_bytes

# CCVR's paper draws some hundreds to two thousand of each class.
PER_CLASS = 500
# FedPFT as in FedCGS's runs, and as in Flower's baseline.
MIXTURES: dict[str, tuple[int, Covariance]] = {"FedPFT-10": (10, "diagonal"), "FedPFT-1": (1, "spherical")}
# Bytes of the backbone's digest in a real reply.
FINGERPRINT = "0" * 64
HIDDEN, ROUNDS, FRACTION = 256, 20, 0.3
KINDS = ("ccvr", "fedpft", "heads", "mlp")
ROUND_OPTIONS = LocalOptions(learning_rate=0.01)
MB = 1e6


@dataclass(frozen=True)
class Compared:
    """One seed of one experiment.

    Attributes
    ----------
    experiment : str
        As given.
    num_clients, seed : int
        Of the split.
    accuracy : dict
        In per cent, by method.
    megabytes : dict
        As sent by all clients.
    formula : dict
        By the papers' formulas, of rounds both ways; a method without one is missing.
    """

    experiment: str
    num_clients: int
    seed: int
    accuracy: dict[str, float]
    megabytes: dict[str, float]
    formula: dict[str, float]


def _closed_form(data: Features, parts: Sequence[np.ndarray], config: AppConfig) -> list[Candidate]:
    """Compute accuracy and bytes as sent of every method of a run.

    Parameters
    ----------
    data : Features
        All samples.
    parts : sequence of ndarray
        The training samples of every client.
    config : AppConfig
        Methods, their options, seed and the wire's dtype.
    """

    def answer(msg: Message, client: int) -> Message:
        index = torch.from_numpy(parts[client])
        statistics = read_statistics_request(msg).statistics(data.train[index], data.train_labels[index])
        return statistics_reply(msg, statistics, backbone_fingerprint=FINGERPRINT)

    strategy = StatisticsStrategy(
        data.num_classes,
        tuple(config.configured_methods.values()),
        feature_dim=data.train.shape[1],
        seed=config.run.seed,
        wire_dtype=config.federation.wire_dtype,
        backbone_fingerprint=FINGERPRINT,
    )
    ask(strategy, answer, len(parts))
    return [Candidate(name, data.accuracy(head), strategy.wire_bytes(name)) for name, head in strategy.heads.items()]


class _Simulation:
    """The baselines of one seed."""

    def __init__(self, data: Features, parts: Sequence[np.ndarray], seed: int) -> None:
        self.data, self.seed = data, seed
        self.clients = {
            client: (data.train[part], data.train_labels[part])
            for client, part in ((client, torch.from_numpy(part)) for client, part in enumerate(parts))
            if len(part)
        }
        rows = sum(len(torch.unique(labels)) for _, labels in self.clients.values())
        self.sizes = TableSizes(
            rows=rows, clients=len(self.clients), classes=data.num_classes, feature_dim=data.train.shape[1]
        )
        self.accuracy: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self.formula: dict[str, int] = {}

    def run(self, kinds: Sequence[str]) -> None:
        """Measure the baselines of some of the :data:`KINDS`."""
        if "ccvr" in kinds:
            self._ccvr()
        for name, (components, covariance) in MIXTURES.items() if "fedpft" in kinds else ():
            self._fedpft(name, components, covariance)
        if "heads" in kinds:
            self._local_heads()
        if "mlp" in kinds:
            self._mlp()

    def _score(self, name: str, scores: Tensor, num_bytes: int, formula: int | None) -> None:
        right = (scores.argmax(dim=1) == self.data.test_labels).double().mean()
        self.accuracy[name], self.bytes[name] = 100 * float(right), num_bytes
        if formula is not None:
            self.formula[name] = formula

    def _trained(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the test logits of the server's softmax head."""
        head = softmax_head(features, labels, self.data.num_classes, key=(self.seed,))
        return head.logits(self.data.test)

    def _ccvr(self) -> None:
        sent = {client: class_gaussians(*own).sent_as(torch.float32) for client, own in self.clients.items()}
        drawn = ccvr_samples(sent, per_class=PER_CLASS, seed=self.seed)
        self._score("CCVR", self._trained(*drawn), _total(sent, torch.float32), formula_bytes("ccvr", self.sizes))

    def _fedpft(self, name: str, components: int, covariance: Covariance) -> None:
        sent = {
            client: fitted_mixtures(*own, components=components, covariance=covariance, seed=0).sent_as(torch.float16)
            for client, own in self.clients.items()
        }
        logits = self._trained(*drawn_samples_of_all(sent, self.seed))
        sizes = replace(self.sizes, components=components)
        formula = formula_bytes("fedpft", sizes) if covariance == "diagonal" else None
        self._score(name, logits, _total(sent, torch.float16), formula)

    def _local_heads(self) -> None:
        classes, heads = self.data.num_classes, []
        for client, (features, labels) in self.clients.items():
            heads.append(softmax_head(features, labels, classes, key=(self.seed, client)))
        counts = [float(len(labels)) for _, labels in self.clients.values()]
        sent = formula_bytes("ensemble", self.sizes)  # heads have nothing but their numbers
        named: dict[str, Tensor] = {
            "one-shot FedAvg": average_heads(heads, counts).logits(self.data.test),
            "ensemble, logits": average_heads(heads, [1.0] * len(heads)).logits(self.data.test),
            "ensemble, probabilities": ensemble_probabilities(heads, [1.0] * len(heads), self.data.test),
        }
        for name, scores in named.items():
            self._score(name, scores, sent, sent)

    def _mlp(self) -> None:
        model = mlp_head(self.sizes.feature_dim, (HIDDEN, HIDDEN), self.data.num_classes, seed=self.seed)
        clients = list(self.clients.values())
        sent = federated_average(model, clients, ROUND_OPTIONS, num_rounds=ROUNDS, fraction=FRACTION, seed=self.seed)
        parameters = sum(value.numel() for value in model.trained_state().values())
        with torch.no_grad():
            self._score("MLP head", model(self.data.test), 2 * sent * parameters, 4 * sent * parameters)  # half is up


def _total(sent: dict[int, ClassMixtures], dtype: torch.dtype) -> int:
    return sum(mixtures.bytes_as(dtype) for mixtures in sent.values())


def measure(
    experiment: str, num_clients: Sequence[int], seeds: int, kinds: Sequence[str] = KINDS
) -> Iterator[Compared]:
    """Yield every number of clients and seed of one experiment."""
    config = config_of(experiment)
    data, name = features_of(config), f"{without_folders(config.data.dataset)}, {config.backbone.backbone}"
    for clients in num_clients:
        for seed in range(seeds):
            own = config_of(experiment, num_clients=clients, seed=seed)
            parts = partitions(own.data, own.partition, seed)
            simulation = _Simulation(data, parts, seed)
            simulation.run(kinds)
            ours = {display_name(result.method): result for result in _closed_form(data, parts, own)}
            formulas = {
                display_name(result.method): formula_bytes(result.method, simulation.sizes) / MB
                for result in ours.values()
                if result.method != "fedroot"
            }
            yield Compared(
                name,
                clients,
                seed,
                {name: 100 * (result.accuracy or 0.0) for name, result in ours.items()} | simulation.accuracy,
                {name: result.wire_bytes / MB for name, result in ours.items()}
                | {name: sent / MB for name, sent in simulation.bytes.items()},
                formulas | {name: sent / MB for name, sent in simulation.formula.items()},
            )


def _of(lines: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return the lines by experiment and number of clients."""
    found: dict[str, list[Compared]] = {}
    for line in lines:
        found.setdefault(f"{line.experiment}, {line.num_clients} clients", []).append(line)
    return found


def _megabytes(values: Sequence[float]) -> str:
    mean = float(np.mean(values)) if values else 0.0
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}" if values else "none"


def table(lines: Sequence[Compared]) -> str:
    """Return a Markdown table per experiment."""
    written = []
    for title, found in _of(lines).items():
        written += [
            f"{title}, {len(found)} seeds",
            "",
            "| method | accuracy (%) | MB as sent | MB by formula |",
            "| --- | ---: | ---: | ---: |",
        ]
        for name in found[0].accuracy:
            mean, half = mean_and_half([line.accuracy[name] for line in found])
            sent = _megabytes([line.megabytes[name] for line in found])
            formula = _megabytes([line.formula[name] for line in found if name in line.formula])
            written.append(f"| {name} | {mean:.2f} ({half:.2f}) | {sent} | {formula} |")
        written.append("")
    return "\n".join(written)


def draw(lines: Sequence[Compared], path: Path) -> None:
    """Draw accuracy against megabytes, one file per experiment: PATH for the first, PATH-2 and so on for the next."""
    from fedstats_app.report.plots.first_stage import accuracy_figure
    from fedstats_app.report.plots.style import save_png

    for number, (title, found) in enumerate(_of(lines).items(), start=1):
        points = [
            CostPoint(
                name,
                float(np.mean([line.megabytes[name] for line in found])),
                float(np.mean([line.accuracy[name] for line in found])) / 100,
            )
            for name in found[0].accuracy
        ]
        file = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        save_png(accuracy_figure(points, f"{title}, {len(found)} seeds"), file)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    parser = experiments_of(__doc__, clients=(5, 10, 100), seeds=5)
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args(arguments)
    given = options.clients, options.seeds, options.only
    found = run(options, Compared, lambda experiment: measure(experiment, *given), table)
    if options.picture is not None:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
