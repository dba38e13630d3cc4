"""Share of the statistics in a client's time: backbone alone against backbone and statistics.

    python -m research.benchmarks.client_statistics
    python -m research.benchmarks.client_statistics --root

The statistics have a Gram matrix (its factor where images are fewer than features), or with ``--root`` FedRoot's factor
of the scatter instead.

Both sides run over the same batches in turn, with random weights (time does not depend on them) and without reading or
resizing images, which would only make the share of the statistics smaller.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.methods import FedRootMethod
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from research.benchmarks.lines import parser_of

GRAM = StatisticsSpec(gram=True)
NUM_CLASSES = 100


def measure(
    backbone: Backbone, *, num_batches: int = 4, repeats: int = 7, spec: StatisticsSpec = GRAM
) -> dict[str, float]:
    """Return seconds per image of both sides (medians), and ``overhead``, the median of the paired ratios less 1."""
    generator = torch.Generator().manual_seed(0)
    size = (backbone.batch_size, 3, backbone.input_size, backbone.input_size)
    batches = [torch.randn(size, generator=generator) for _ in range(num_batches)]
    num_images = num_batches * backbone.batch_size
    labels = torch.randint(0, NUM_CLASSES, (num_images,), generator=generator)
    _features(backbone, batches[:1])  # kernels are chosen and memory is allocated
    alone: list[float] = []
    both: list[float] = []
    for repeat in range(repeats):
        sides: list[tuple[list[float], Callable[[], object]]] = [
            (alone, lambda: _features(backbone, batches)),
            (both, lambda: _statistics(backbone, batches, labels, NUM_CLASSES, spec)),
        ]
        for seconds, work in sides if repeat % 2 == 0 else sides[::-1]:
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    return {
        "images": num_images,
        "repeats": repeats,
        "feature_dim": backbone.feature_dim,
        "threads": torch.get_num_threads(),
        "backbone_seconds_per_image": statistics.median(alone) / num_images,
        "with_statistics_seconds_per_image": statistics.median(both) / num_images,
        "overhead": statistics.median(b / a for a, b in zip(alone, both, strict=True)) - 1,
    }


def _features(backbone: Backbone, batches: list[Tensor]) -> None:
    for batch in batches:
        backbone.forward_batch(batch)


def _statistics(
    backbone: Backbone, batches: list[Tensor], labels: Tensor, num_classes: int, spec: StatisticsSpec
) -> ClientStatistics:
    accumulator = spec.accumulator(labels, num_classes, backbone.feature_dim, device=backbone.device)
    for batch in batches:
        accumulator.update(backbone.forward_batch(batch))
    return accumulator.statistics()


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=4, help="batches that one client has")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--root", action="store_true", help="FedRoot's factor instead of the Gram matrix")
    options = parser.parse_args(arguments)
    backbone = load_backbone(
        options.backbone, weights="random", input_size=options.input_size, batch_size=options.batch_size, device="cpu"
    )
    measured = measure(
        backbone,
        num_batches=options.batches,
        repeats=options.repeats,
        spec=FedRootMethod.default().specification if options.root else GRAM,
    )
    print(json.dumps({"backbone": options.backbone, "input_size": options.input_size, **measured}))


if __name__ == "__main__":
    main()
