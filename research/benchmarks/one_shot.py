"""Whole networks in one shot beside closed-form heads: FedAvg, ensembles, DENSE and Co-Boosting on the same split.

    python -m research.benchmarks.one_shot "dataset=builtin" --clients 10 --alphas 0.05 0.1 0.5 --seeds 3

Clients train DENSE's small network on grey images of 28 pixels from one drawn start, or with ``--network own`` the
experiment's backbone, from its weights and a head of zeros; the heads are those of the experiment's frozen backbone.
FedCGS's tables 1 and 6 (the splits of left-out domains have no alpha, so one is enough):

    python -m research.benchmarks.one_shot "dataset=parquet:/data/svhn backbone=resnet18 input-size=32 input-mean=0.5 \\
      input-std=0.5 partitioner=fedcgs" --network own
    python -m research.benchmarks.one_shot "dataset=hub:flwrlabs/pacs partition-column=domain partitioner=domain \\
      left-out-domain=domain=photo backbone=resnet18" --network own --clients 15 --alphas 0.1

One line of JSON is printed per split and method, then a table. A line per epoch of a distillation goes to standard
error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data import Dataset
from fedstats_app.data.clients import partitions, test_split, training_set
from fedstats_app.heads import LinearHead, solve_gaussian
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions
from research.baselines.batch_norm import AdaptingModel
from research.baselines.data_free import CO_BOOSTING, DENSE, DataFreeOptions, distilled, normalised
from research.baselines.whole_networks import Ensemble, average_of, small_cnn, trained_networks
from research.benchmarks.features import features_of, settings_of
from research.benchmarks.lines import experiments_of, mean_and_half, run

SIDE = 28
_AT_ONCE = 500


@dataclass(frozen=True)
class Scored:
    """One method on one split: accuracy in per cent, bytes of all clients, and seconds at the server and clients."""

    experiment: str
    clients: int
    alpha: float
    seed: int
    method: str
    accuracy: float
    num_bytes: int
    seconds: float


def images_of(dataset: Dataset, channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Return (n, channels, side, side) float32 images in [-1, 1], grey or in colours, resized, and (n,) labels."""
    pixels = np.zeros((len(dataset), side, side, channels), dtype=np.float32)
    for place in range(len(dataset)):
        image = dataset.sample(place)
        if not isinstance(image, Image.Image):
            raise TypeError(f"{dataset.name} must hold images, got {type(image).__name__}")
        resized = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((side, side)), dtype=np.float32)
        pixels[place] = resized.reshape(side, side, channels)
    ordered = torch.from_numpy(pixels).movedim(3, 1).contiguous()
    return normalised(ordered / 255.0), torch.from_numpy(np.array(dataset.labels))


def own_network(module: nn.Module, feature_dim: int, num_classes: int) -> TunedModel:
    """Return a backbone and a head of zeros, all of which is trained; running statistics travel too."""
    head = torch.zeros(num_classes, feature_dim), torch.zeros(num_classes)
    return AdaptingModel(head, module, "averaged")


def accuracy(logits: Sequence[Tensor], labels: Tensor) -> float:
    """Return per cent right, of logits batch by batch."""
    return 100 * float((torch.cat([batch.argmax(dim=1).cpu() for batch in logits]) == labels).double().mean())


def of_networks(
    clients: Sequence[tuple[Tensor, Tensor]],
    test: tuple[Tensor, Tensor],
    start_of: Callable[[int], TunedModel],
    options: LocalOptions,
    data_free: dict[str, DataFreeOptions],
    seed: int,
) -> Iterator[tuple[str, float, int, float]]:
    """Yield method, accuracy, bytes and seconds; clients and student start from what a seed gives."""
    began = time.perf_counter()
    start = start_of(seed)
    networks = trained_networks(start, clients, options, seed=seed)
    trained = time.perf_counter() - began
    numbers = sum(value.numel() for value in start.trained_state().values())
    num_bytes, (inputs, labels) = 4 * numbers * len(networks), test

    @torch.no_grad()
    def scored(network: TunedModel) -> float:
        return accuracy([network(batch) for batch in torch.split(inputs, _AT_ONCE)], labels)

    sizes = [len(own) for _, own in clients if len(own)]
    yield "FedAvg, one shot", scored(average_of(networks, sizes)), num_bytes, trained
    with torch.no_grad():
        together = [Ensemble(networks).logits(batch) for batch in torch.split(inputs, _AT_ONCE)]
    yield "ensemble", accuracy(together, labels), num_bytes, trained
    for name, own in data_free.items():
        began = time.perf_counter()

        def print_epoch(epoch: int, student: TunedModel, name: str = name, epochs: int = own.epochs) -> None:
            if epoch % 10 == 0 or epoch == epochs:
                print(f"{name} epoch {epoch} of {epochs}: {scored(student):.2f}", file=sys.stderr, flush=True)

        _, channels, side, _ = inputs.shape
        student, _ = distilled(networks, start_of(seed + 1), own, channels, side, seed=seed, after_epoch=print_epoch)
        yield name, scored(student), num_bytes, trained + time.perf_counter() - began


def measure(
    experiment: str,
    number: int,
    alphas: Sequence[float],
    seeds: int,
    options: LocalOptions,
    data_free: dict[str, DataFreeOptions],
    *,
    own_backbone: bool = False,
    device: str = "cpu",
) -> Iterator[Scored]:
    """Yield every split among this number of clients, and every method, of one experiment."""
    config = AppConfig.from_run_config(settings_of(experiment))
    train, features = training_set(config.data), features_of(config)
    if own_backbone:
        backbone = loaded_backbone(config.backbone_for(own_data=False))
        network = own_network(backbone.module, backbone.feature_dim, features.num_classes)
        shape = 3, backbone.transform.input_size
    else:
        network, shape = None, (1, SIDE)

    def start_of(seed: int) -> TunedModel:
        return (network or small_cnn(features.num_classes, *shape, seed)).to(device)

    (images, labels), own_test = images_of(train, *shape), test_split(config.data.dataset, config.data)
    assert own_test is not None  # features_of raises without
    test_images, test_labels = images_of(own_test, *shape)
    images, test = images.to(device), (test_images.to(device), test_labels)
    stats = FeatureStatistics.from_features(features.train.double(), labels, features.num_classes)
    dim = stats.feature_dim
    began = time.perf_counter()
    head: LinearHead = solve_gaussian(stats, covariance="within", shrinkage="auto")
    fedcgs = 100 * features.accuracy(head), time.perf_counter() - began
    for alpha in alphas:
        for seed in range(seeds):
            partition = replace(config.partition, num_clients=number, dirichlet_alpha=alpha)
            parts = [torch.from_numpy(part) for part in partitions(config.data, partition, seed)]
            own = [(images[part], labels[part]) for part in parts]
            for name, right, num_bytes, seconds in of_networks(own, test, start_of, options, data_free, seed):
                yield Scored(experiment, number, alpha, seed, name, right, num_bytes, round(seconds, 1))
            gram = 4 * number * (features.num_classes * dim + dim * dim + features.num_classes)
            yield Scored(experiment, number, alpha, seed, "FedCGS", fedcgs[0], gram, round(fedcgs[1], 1))


def table(lines: Sequence[Scored]) -> str:
    """Write a Markdown table: means over seeds, in brackets half of the 95% interval."""
    alphas = list(dict.fromkeys(line.alpha for line in lines))
    heads = " | ".join(f"alpha {alpha:g}" for alpha in alphas)
    written = [f"| accuracy (%), clients | {heads} | MB of all | seconds |", "| --- |" + " ---: |" * (len(alphas) + 2)]
    for method, clients in dict.fromkeys((line.method, line.clients) for line in lines):
        own = [line for line in lines if (line.method, line.clients) == (method, clients)]
        cells = []
        for alpha in alphas:
            mean, half = mean_and_half([line.accuracy for line in own if line.alpha == alpha])
            cells.append(f"{mean:.2f} ({half:.2f})")
        seconds = np.mean([line.seconds for line in own])
        written.append(f"| {method}, {clients} | {' | '.join(cells)} | {own[0].num_bytes / 1e6:.1f} | {seconds:.0f} |")
    return "\n".join(written)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = experiments_of(__doc__, clients=(10,), seeds=3)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.05, 0.1, 0.5])
    parser.add_argument("--local-epochs", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=200, help="of a distillation")
    parser.add_argument("--batch", type=int, help="images of an epoch; by default as the papers' codes")
    parser.add_argument("--width", type=int, default=64, help="of the generator")
    parser.add_argument("--device", default="cpu", help="that trains and distils, say cuda")
    parser.add_argument("--network", choices=("small", "own"), default="small", help="what clients train")
    parser.add_argument("--only", choices=("DENSE", "Co-Boosting"), help="the one distillation that is run")
    options = parser.parse_args(arguments)
    local = LocalOptions(epochs=options.local_epochs, batch_size=128, momentum=0.9, learning_rate=0.01)
    both = {
        name: replace(method, epochs=options.epochs, width=options.width, batch=options.batch or method.batch)
        for name, method in (("DENSE", DENSE), ("Co-Boosting", CO_BOOSTING))
        if options.only in (None, name)
    }
    given = options.alphas, options.seeds, local, both
    run(
        options,
        Scored,
        lambda experiment: (
            line
            for number in options.clients
            for line in measure(
                experiment, number, *given, own_backbone=options.network == "own", device=options.device
            )
        ),
        table,
    )


if __name__ == "__main__":
    main()
