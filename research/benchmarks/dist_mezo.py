"""What FedMeZO saves by sending seeds: the same training with the model sent before every round, bit for bit.

    python -m research.benchmarks.dist_mezo dataset=builtin --clients 10 --rounds 100

FedNCM's head is tuned on cached features, at the temperature of the least loss and at the rate that the curvature of
the loss gives. Bytes are of all clients and rounds.
"""

from __future__ import annotations

import copy
import statistics

import torch
from torch import Tensor

from fedstats_app.data.clients import partitions
from fedstats_app.fedmezo.directions import Directions, Probe
from fedstats_app.fedmezo.measures import curvatures
from fedstats_app.fedmezo.perturbation import Perturbation
from fedstats_app.heads import LinearHead, solve_ncm
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.evaluation import losses_by_temperature
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.temperature import best_temperature
from research.baselines.dist_mezo import Sends, Travelled, federated_mezo
from research.benchmarks.features import config_of, features_of
from research.benchmarks.lines import parser_of

WAYS: tuple[Sends, ...] = ("seeds", "model")
KB = 1e3
NAMES = ("head.weight", "head.bias")
BATCH = 1 << 20


def start_of(features: Tensor, labels: Tensor, num_classes: int) -> LinearHead:
    """Return FedNCM's head at the temperature of the least loss."""
    head = solve_ncm(FeatureStatistics.from_features(features, labels, num_classes))
    samples = TensorSamples(features, labels)
    temperature = best_temperature(losses_by_temperature(TunedModel(head, tune="probe"), samples, BATCH))
    return LinearHead(head.weight / temperature, head.bias.nan_to_num(neginf=0.0) / temperature)


def rows(experiment: str, num_clients: int, num_rounds: int) -> list[str]:
    """Return a line for each way, and one that says whether their models are the same bits."""
    config = config_of(experiment, num_clients=num_clients)
    data, parts = features_of(config), partitions(config.data, config.partition, config.run.seed)
    indices = [torch.from_numpy(part) for part in parts]
    clients = [(data.train[index], data.train_labels[index]) for index in indices]
    start = TunedModel(start_of(data.train, data.train_labels, data.num_classes), tune="probe")
    samples = TensorSamples(data.train, data.train_labels)
    probes = [Probe(0, index, 1e-3, Directions()) for index in range(8)]
    rate = 0.5 / statistics.fmean(curvatures(Perturbation(start, NAMES), samples, BATCH, probes))
    models: list[TunedModel] = []
    sent: list[Travelled] = []
    for way in WAYS:
        models.append(copy.deepcopy(start))
        sent.append(federated_mezo(models[-1], NAMES, clients, num_rounds=num_rounds, learning_rate=rate, sends=way))
    lines = []
    for way, model, travelled in zip(WAYS, models, sent, strict=True):
        with torch.no_grad():
            right = (model(data.test).argmax(dim=1) == data.test_labels).double().mean()
        lines.append(f"| {way} | {100 * float(right):.2f} | {travelled.down / KB:,.1f} | {travelled.up / KB:,.1f} |")
    first, second = (model.trained_state() for model in models)
    same = all(torch.equal(first[name], second[name]) for name in first)
    return [*lines, "", f"The two models are {'the same bits' if same else 'NOT the same'}."]


def main(arguments: list[str] | None = None) -> None:
    """Print a table of every experiment."""
    parser = parser_of(__doc__)
    parser.add_argument("experiments", nargs="+", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args(arguments)
    for experiment in given.experiments:
        print(f"{experiment}\n\n| sent down | accuracy (%) | kB down | kB up |\n| --- | ---: | ---: | ---: |")
        print("\n".join(rows(experiment, given.clients, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
