"""Peak memory of the process in which a SuperNode runs the ClientApp, from few images to many: it must not grow.

    python -m research.benchmarks.supernode_memory --backbone efficientnet_lite0 --images 100 1000 10000

One process per number of images, as in deployment, which is asked for the statistics of all methods. The folder holds
hard links to a few images: each is read, transformed and sent through the network like any other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from research.benchmarks.lines import parser_of

NUM_CLASSES, DIFFERENT_IMAGES, IMAGE_SIDE = 10, 50, 64
# Largest over smallest peak. Labels and file names do take some memory.
LIMIT_RATIO = 1.15


@dataclass(frozen=True)
class Measurement:
    """Memory of one process.

    Attributes
    ----------
    images : int
        In the folder, all of which were read.
    peak_megabytes : float
        Largest resident memory of the process, libraries included.
    seconds : float
        From the start of the process to its end.
    """

    images: int
    peak_megabytes: float
    seconds: float


def make_images(root: Path, number: int) -> None:
    """Write ``number`` images, one folder per class."""
    draw = np.random.default_rng(0)
    originals = []
    for index in range(number):
        path = root / f"class-{index % NUM_CLASSES}" / f"{index:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if index < DIFFERENT_IMAGES:
            pixels = draw.integers(0, 256, (IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
            originals.append(path)
        else:
            os.link(originals[index % DIFFERENT_IMAGES], path)


def answer(data_path: str, backbone: str, weights: str, input_size: int) -> float:
    """Answer ``query.statistics`` in this process as a SuperNode's does, and return its peak memory in MB."""
    from flwr.app import Context, RecordDict

    from fedstats_app.client_app import app
    from fedstats_app.settings.app_config import AppConfig
    from fedstats_app.statistics import StatisticsSpec
    from fedstats_app.testing import instruction
    from fedstats_app.wire import StatisticsRequest, read_statistics_reply

    settings: dict[str, str | int] = {"backbone": backbone, "backbone-weights": weights, "input-size": input_size}
    context = Context(
        1, 1, {"data-path": data_path}, RecordDict(), {**AppConfig().to_run_config(), **settings, "device": "cpu"}
    )
    request = StatisticsRequest(
        NUM_CLASSES, StatisticsSpec(gram=True), class_names=tuple(f"class-{label}" for label in range(NUM_CLASSES))
    )
    reply = app(instruction(request.to_content()), context)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    received = read_statistics_reply(reply, request)
    expected = sum(1 for _ in Path(data_path).glob("*/*.png"))
    if received.num_examples != expected:
        raise RuntimeError(f"the reply must cover {expected} images, got {received.num_examples}")
    return peak


def measure(backbone: str, images: list[int], *, weights: str = "", input_size: int = 0) -> list[Measurement]:
    """Run one process per number of images."""
    found = []
    for number in images:
        with tempfile.TemporaryDirectory() as folder:
            make_images(Path(folder), number)
            program = (
                "import research.benchmarks.supernode_memory as benchmark; "
                f"print(benchmark.answer({folder!r}, {backbone!r}, {weights!r}, {input_size}))"
            )
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the process for {number} images ended with {done.returncode}:\n{done.stderr}")
            peak = float(done.stdout.splitlines()[-1])
            found.append(Measurement(number, peak, time.perf_counter() - started))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; the exit code is 1 if memory grows with the number of images."""
    parser = parser_of(__doc__)
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--weights", default="", help="weight file, or random; memory does not depend on the weights")
    parser.add_argument("--input-size", type=int, default=0, help="side in pixels, 0 for the backbone's own")
    parser.add_argument("--images", type=int, nargs="+", default=[100, 1000, 10000])
    options = parser.parse_args(arguments)
    if min(options.images) < DIFFERENT_IMAGES:
        parser.error(f"--images must be at least {DIFFERENT_IMAGES} each")
    results = measure(options.backbone, options.images, weights=options.weights, input_size=options.input_size)
    peaks = [result.peak_megabytes for result in results]
    ratio = max(peaks) / min(peaks)
    print(json.dumps({"measurements": [vars(result) for result in results], "ratio": ratio, "limit": LIMIT_RATIO}))
    return int(ratio > LIMIT_RATIO)


if __name__ == "__main__":
    sys.exit(main())
