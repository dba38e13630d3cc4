"""Images a second on a GPU: the bare network, and how much of that each layer of the app reaches.

    python -m research.benchmarks.gpu

A line for each network (random weights) and precision. `bare` is the network in channels-last order on a batch that is
on the device, at the fastest of some batch sizes; the app's layers run at that batch size, each shown as a share of it:
`memory` is `Backbone.extract` of images in memory, `files` all that a client does from JPEG files to sums, beside
`reading`, the same without the network in one thread. Then whole commands over the same files, `fedstats run` and
`flwr run` under Ray with one worker and two. What has not begun after `--seconds` is left out.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import load_dataset
from research.benchmarks.engines import client, reading, write_jpegs
from research.benchmarks.lines import parser_of, printed

NETWORKS = ("efficientnet_lite0", "resnet50", "vit_b_16")
BATCH_SIZES = (32, 64, 128, 256, 512)
PRECISIONS = ("bf16", "none")
PIXELS = 500
# From a command to the GPU's share of each of its workers; None where Ray takes no part.
COMMANDS: dict[str, float | None] = {"fedstats run": None, "flwr run, 1 worker": 1.0, "flwr run, 2 workers": 0.5}


@dataclass(frozen=True)
class Layers:
    """Images a second of one network in one precision; shares are of the bare network."""

    network: str
    autocast: str
    batch_size: int
    bare: float
    memory: float
    files: float
    reading: float
    memory_share: float
    files_share: float
    peak_gigabytes: float


@dataclass(frozen=True)
class Command:
    """Images a second of one whole command, imports and all, as a share of the bare network's."""

    command: str
    network: str
    seconds: float
    images: float
    share: float


def _rate(work: Callable[[], int], device: torch.device) -> float:
    """Return images a second of the better of two turns, after one that does not count."""
    found = []
    for _ in range(3):
        started = time.perf_counter()
        number = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(number / (time.perf_counter() - started))
    return max(found[1:])


def _bare(backbone: Backbone) -> Callable[[], int]:
    device, dtype = backbone.device, {"bf16": torch.bfloat16}.get(backbone.autocast)
    first, *_ = backbone.transform.probes()
    batch = torch.stack([first] * backbone.batch_size).to(device, memory_format=torch.channels_last)

    def work() -> int:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype is not None):
            for _ in range(8):
                backbone.module(batch)
        return 8 * len(batch)

    return work


def layers(network: str, autocast: str, folder: Path, options: Sequence[int], size: int, device: str) -> Layers:
    """Measure one network in one precision; ``options`` are batch sizes, of which the fastest counts."""
    rates: dict[int, float] = {}
    for batch_size in options:
        backbone = _loaded(network, autocast, batch_size, size, device)
        try:
            rates[batch_size] = _rate(_bare(backbone), backbone.device)
        except torch.OutOfMemoryError:
            break
    best = max(rates, key=rates.__getitem__)
    backbone, dataset = _loaded(network, autocast, best, size, device), load_dataset(f"folder:{folder}", "train")
    if backbone.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    images = [dataset.sample(index) for index in range(min(len(dataset), 2 * best))]
    many = [*itertools.islice(itertools.cycle(images), max(8 * best, len(images)))]
    memory = _rate(lambda: sum(map(len, backbone.extract(many))), backbone.device)
    files = _rate(lambda: client(backbone, dataset), backbone.device)
    decoded = _rate(lambda: reading(backbone.transform, dataset), torch.device("cpu"))
    peak = torch.cuda.max_memory_allocated() / 1e9 if backbone.device.type == "cuda" else 0.0
    bare = rates[best]
    return Layers(
        network,
        autocast,
        best,
        round(bare, 1),
        round(memory, 1),
        round(files, 1),
        round(decoded, 1),
        round(memory / bare, 3),
        round(files / bare, 3),
        round(peak, 2),
    )


def _loaded(network: str, autocast: str, batch_size: int, size: int, device: str) -> Backbone:
    running = {"batch_size": batch_size, "device": device, "autocast": autocast, "channels_last": True}
    return load_backbone(network, weights="random", input_size=size, engine="torch", **running)  # type: ignore[arg-type]


def command(name: str, line: Layers, folder: Path, number: int, size: int) -> Command:
    """Time one command over all files, in the precision and batch size of a line.

    Raises
    ------
    subprocess.CalledProcessError
        If it fails.
    """
    settings = (
        f"dataset='folder:{folder}' method='fedncm,fedcgs' num-clients=2 backbone='{line.network}' "
        f"backbone-weights='random' input-size={size} batch-size={line.batch_size} autocast='{line.autocast}' "
        "feature-cache='off' plots=false"
    )
    if (share := COMMANDS[name]) is None:
        words = [sys.executable, "-m", "fedstats_app.cli", "run", settings]
    else:
        federation = f"client-resources-num-cpus=2 client-resources-num-gpus={share}"
        words = ["flwr", "run", ".", "--stream", "--federation-config", federation, "-c", settings]
    environment = os.environ | {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    started = time.perf_counter()
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    rate = number / seconds
    return Command(name, line.network, round(seconds, 1), round(rate, 1), round(rate / line.bare, 3))


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: a line of JSON per measurement."""
    parser = parser_of(__doc__)
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[*BATCH_SIZES])
    parser.add_argument("--commands", nargs="*", choices=[*COMMANDS], default=[*COMMANDS])
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=420.0)
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    print(torch.cuda.get_device_name() if given.device == "cuda" else given.device, flush=True)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        write_jpegs(folder, given.images, PIXELS)

        def in_time(names: Sequence[str]) -> Iterator[str]:
            for name in names:
                if time.monotonic() < until:
                    yield name
                else:
                    print(f"left out after {given.seconds:g} s: {name}", flush=True)

        pairs = [f"{network} {autocast}" for network in given.networks for autocast in PRECISIONS]
        measured = printed(
            layers(network, autocast, folder, given.batch_sizes, given.input_size, given.device)
            for network, autocast in map(str.split, in_time(pairs))
        )
        for first in measured[:1]:
            printed(command(name, first, folder, given.images, given.input_size) for name in in_time(given.commands))


if __name__ == "__main__":
    main()
