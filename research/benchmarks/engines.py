"""Images a second by each engine against torch in the same run, and what another engine changes in the heads.

    python -m research.benchmarks.engines forward
    python -m research.benchmarks.engines client --images 1000 --pixels 500
    python -m research.benchmarks.engines client --images 200 --pixels 3000
    python -m research.benchmarks.engines heads "dataset=builtin"

`forward` is the network alone, on inputs that are ready. `client` is all that a client does for its statistics, from
JPEGs of smooth noise on disk to sums, without the feature cache; `reading` is what of it is left without the network:
files, decoding and transform. The engines take turns; rates are medians, and ratios are medians of those of each turn.
`heads` solves heads on the features of each engine and counts test images whose prediction is not that of torch's head.

`forward` and `client` need torch and no Flower, so they also run where a GPU is:

    python -m research.benchmarks.engines forward --engines torch --device cuda --batch-size 256 --autocast bf16

Weights are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import ENGINES, EngineError
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.transform import InputTransform
from fedstats_app.data import Dataset, load_dataset
from fedstats_app.heads import LinearHead, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.statistics import FeatureStatistics, StatisticsSpec
from research.benchmarks.lines import parser_of

NETWORKS = ("efficientnet_lite0", "mobilenet_v2", "squeezenet1_1")
# A photograph compresses to about as much; noise in every pixel would to several times that.
_CELL = 12


def networks(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Backbone]]]:
    """Yield each network with the engines that this machine has for it."""
    for name in options.networks:
        found: dict[str, Backbone] = {}
        for engine in options.engines:
            try:
                found[engine] = load_backbone(
                    name,
                    weights="random",
                    input_size=options.input_size,
                    batch_size=options.batch_size,
                    device=options.device,
                    autocast=options.autocast,
                    channels_last=True,
                    engine=engine,
                )
                forward(found[engine], 1)  # kernels are chosen, networks exported and compiled
            except (ModuleNotFoundError, EngineError) as error:
                print(f"{name}: {error}")
                found.pop(engine, None)
        yield name, found


def rates(work: dict[str, Callable[[], int]], turns: int) -> dict[str, tuple[float, float]]:
    """Return of each piece of work its images a second, and their ratio to the first's; each returns its images."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns):
        for name in [*work][:: 1 if turn % 2 == 0 else -1]:
            started = time.perf_counter()
            number = work[name]()
            found[name].append(number / (time.perf_counter() - started))
    [first, *_] = found.values()
    return {
        name: (statistics.median(rate), statistics.median(a / b for a, b in zip(rate, first, strict=True)))
        for name, rate in found.items()
    }


def forward(backbone: Backbone, num_batches: int) -> int:
    first, *_ = backbone.transform.probes()
    inputs = [first] * (backbone.batch_size * num_batches)
    return sum(len(block.cpu()) for block in backbone.extract_inputs(inputs))


def reading(transform: InputTransform, dataset: Dataset) -> int:
    """Read, decode and transform every sample, in one thread."""
    return sum(len(transform(dataset.sample(index))) > 0 for index in range(len(dataset)))


def client(backbone: Backbone, dataset: Dataset) -> int:
    """Do what a client does for its statistics."""
    labels, num_classes = torch.from_numpy(np.array(dataset.labels)), len(dataset.class_names)
    accumulator = StatisticsSpec(gram=True).accumulator(
        labels, num_classes, backbone.feature_dim, device=backbone.device
    )
    reader = FeatureReader(backbone)
    for block, _ in reader.blocks(dataset, np.arange(len(dataset))):
        accumulator.update(block)
    return int(accumulator.statistics().rows.num_examples)


def write_jpegs(folder: Path, number: int, pixels: int) -> int:
    """Write images of two classes and return their bytes."""
    rng = np.random.default_rng(0)
    for index in range(number):
        path = folder / "train" / "ab"[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = rng.integers(0, 256, (pixels // _CELL, pixels // _CELL, 3), dtype=np.uint8)
        Image.fromarray(cells).resize((pixels, pixels), Image.Resampling.BICUBIC).save(path, quality=90)
    return sum(path.stat().st_size for path in folder.rglob("*.jpg"))


def work_of(
    found: dict[str, Backbone], dataset: Dataset | None, options: argparse.Namespace
) -> dict[str, Callable[[], int]]:
    """Return the work of each engine: the network alone without a data set, else all that a client does."""
    if dataset is None:
        return {engine: functools.partial(forward, backbone, options.batches) for engine, backbone in found.items()}
    work: dict[str, Callable[[], int]] = {
        engine: functools.partial(client, backbone, dataset) for engine, backbone in found.items()
    }
    for backbone in [*found.values()][:1]:
        work["reading"] = functools.partial(reading, backbone.transform, dataset)
    return work


def heads(experiment: str, engines: Sequence[str]) -> Iterator[str]:
    """Yield a line per head and engine."""
    from research.benchmarks.features import config_of, features_of

    torchs: dict[str, Tensor] = {}
    for engine in engines:
        data = features_of(config_of(experiment, engine=engine))
        sums = FeatureStatistics.from_features(data.train.double(), data.train_labels, data.num_classes)
        solved: dict[str, LinearHead] = {
            "FedNCM": solve_ncm(sums),
            "Fed3R": solve_ridge(sums, ridge_lambda="auto"),
            "FedCGS": solve_gaussian(sums, covariance="within", shrinkage="auto"),
        }
        for name, head in solved.items():
            predictions = head.predict(data.test)
            accuracy = 100 * float((predictions == data.test_labels).double().mean())
            differing = 1000 * float((predictions != torchs.setdefault(name, predictions)).double().mean())
            yield f"{engine:14} {name:7} {accuracy:6.2f} %  {differing:6.2f} of 1,000 predictions are not torch's"


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("forward", "client", "heads"))
    parser.add_argument("experiments", nargs="*", metavar="FILE.toml or 'key=value ...'")
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS])
    parser.add_argument(
        "--engines", nargs="+", default=[*ENGINES[1:]], help="the first is what others are held against"
    )
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, default=8, help="in a turn of `forward`")
    parser.add_argument(
        "--batch-size",
        type=lambda text: text if text == "auto" else int(text),
        default=16,
        help="as the run-config key",
    )
    parser.add_argument("--device", default="cpu", help="as the run-config key, and the next")
    parser.add_argument("--autocast", default="none")
    parser.add_argument("--images", type=int, default=1000, help="JPEGs in a turn of `client`")
    parser.add_argument("--pixels", type=int, default=500, help="sides of the JPEGs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, {options.input_size} pixels, medians of {options.turns} turns")
    if options.what == "heads":
        for experiment in options.experiments or ["dataset=builtin"]:
            print(experiment)
            for line in heads(experiment, options.engines):
                print(line, flush=True)
        return
    with tempfile.TemporaryDirectory() as root:
        dataset = None
        if options.what == "client":
            size = write_jpegs(Path(root), options.images, options.pixels)
            print(f"{options.images} JPEGs of {options.pixels} pixels, {size / options.images / 1000:.0f} KB each")
            dataset = load_dataset(f"folder:{root}", "train")
        for name, found in networks(options):
            for engine, (rate, ratio) in rates(work_of(found, dataset, options), options.turns).items():
                print(f"{name:20} {engine:14} {rate:8.1f} samples/s   {ratio:5.2f} times", flush=True)


if __name__ == "__main__":
    main()
