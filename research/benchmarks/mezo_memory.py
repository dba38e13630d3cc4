"""Memory and time of a FedMeZO step against those of the forward pass at the same batch size, all parameters tuned.

    python -m research.benchmarks.mezo_memory --models all-MiniLM-L6-v2 --size 64
    python -m research.benchmarks.mezo_memory --models mobilenet_v2 --weights random

A step is both sides of one direction. Beside it stands a step of SGD on the same batch. Memory is the peak of the bytes
of living tensors, above the model's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.names import is_text_backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.fedmezo.directions import Directions, Distribution, Probe
from fedstats_app.fedmezo.perturbation import How, Perturbation, projected_gradients, tuned_names
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from research.benchmarks.lines import parser_of
from research.benchmarks.live_tensors import LiveTensors

NUM_CLASSES, EPSILON = 10, 1e-3
KINDS = ("forward", "step", "gradient")
# Largest modules that a step may take beside the forward pass, and forward passes beside drawing random numbers.
LIMIT_MODULES, LIMIT_PASSES = 1.1, 2.2


@dataclass(frozen=True)
class Case:
    """Case that is measured.

    Attributes
    ----------
    model, weights : str
        Backbone and its weights; "" for its own.
    dtype : str
        Of parameters and activations.
    batch_size, size : int
        Samples, and tokens of a text or pixels of an image's side; 0 for the backbone's own.
    how : {"auto", "read", "copy"}
        Of the perturbation.
    distribution : {"rademacher", "gaussian"}
        Of the direction.
    """

    model: str
    weights: str
    dtype: str
    batch_size: int
    size: int
    how: How
    distribution: Distribution


class Batch:
    """One batch as samples."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self.labels = inputs, labels

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the batch itself: a copy would count as memory of the step."""
        return self._inputs


class Work:
    """Model, batch, and what may be done with them."""

    def __init__(self, case: Case) -> None:
        backbone = load_backbone(case.model, weights=case.weights, input_size=case.size, batch_size=1, device="cpu")
        head = LinearHead(torch.zeros(NUM_CLASSES, backbone.feature_dim), torch.zeros(NUM_CLASSES))
        dtype = getattr(torch, case.dtype)
        self.model = TunedModel(head, backbone=backbone.module, tune="full").to(dtype)
        self.perturbation = Perturbation(self.model, tuned_names(self.model, "full"), how=case.how)
        self.probe = Probe(0, 0, EPSILON, Directions(case.distribution))
        draw = torch.Generator().manual_seed(0)
        if is_text_backbone(case.model):
            embedding = next(layer for layer in self.model.modules() if isinstance(layer, nn.Embedding))
            tokens = torch.randint(embedding.num_embeddings, (case.batch_size, 1, backbone.input_size), generator=draw)
            inputs = torch.cat([tokens, torch.ones_like(tokens)], dim=1)
        else:
            inputs = torch.randn(case.batch_size, 3, backbone.input_size, backbone.input_size, generator=draw).to(dtype)
        self.batch = Batch(inputs, torch.randint(NUM_CLASSES, (case.batch_size,), generator=draw))

    def forward(self) -> None:
        """Compute the loss."""
        with torch.no_grad():
            self._loss()

    def step(self) -> None:
        """Compute the loss on both sides."""
        projected_gradients(self.perturbation, self.batch, len(self.batch.labels), [self.probe])

    def gradient(self) -> None:
        """Take a step of SGD."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)
        self._loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    def draw(self) -> None:
        """Draw the random numbers of a step and do nothing with them."""
        for name in 2 * self.perturbation.names:
            parameter = self.model.get_parameter(name)
            for _ in self.probe.directions.blocks(self.probe.seed, self.probe.index, name, parameter.numel()):
                pass

    def _loss(self) -> Tensor:
        logits = self.model(self.batch.inputs(torch.arange(0)))
        return F.cross_entropy(logits.double(), self.batch.labels)


@dataclass(frozen=True)
class Measurement:
    """Memory and time of a case.

    Attributes
    ----------
    case : Case
        Measured case.
    how : str
        How parameters were perturbed.
    parameters_megabytes, module_megabytes : float
        All tuned parameters, and those of the largest module.
    live_megabytes : dict
        Peaks above the model's, of a forward pass, a step and a step of SGD.
    seconds : dict
        Of those and of drawing the random numbers of a step; processor time of all threads, so that what else the
        machine does disturbs little.
    """

    case: Case
    how: str
    parameters_megabytes: float
    module_megabytes: float
    live_megabytes: dict[str, float]
    seconds: dict[str, float]

    @property
    def modules(self) -> float:
        """Largest modules that a step takes beside what the forward pass takes."""
        return (self.live_megabytes["step"] - self.live_megabytes["forward"]) / self.module_megabytes

    @property
    def passes(self) -> float:
        """Forward passes that a step takes, drawing left out."""
        return (self.seconds["step"] - self.seconds["draw"]) / self.seconds["forward"]

    @property
    def holds(self) -> bool:
        """True if both are within their limits."""
        return self.modules <= LIMIT_MODULES and self.passes <= LIMIT_PASSES


def live_megabytes(work: Work, kind: str) -> float:
    """Return the peak of living tensors' bytes, above what is there before, in MB."""
    known = [*work.model.parameters(), *work.model.buffers(), work.batch.inputs(torch.arange(0)), work.batch.labels]
    live = LiveTensors(known)
    with live:
        getattr(work, kind)()
    return live.peak / 1e6


def processor_seconds(works: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Return the median time of each, in turns: other programs slow all of them down alike."""
    times: dict[str, list[float]] = {kind: [] for kind in works}
    for _ in range(repeats):
        for kind, work in works.items():
            started = time.process_time()
            work()
            times[kind].append(time.process_time() - started)
    return {kind: median(measured) for kind, measured in times.items()}


def measure(case: Case, repeats: int) -> Measurement:
    """Measure a case."""
    work = Work(case)
    for kind in KINDS:
        getattr(work, kind)()  # the first time, libraries make tables
    live = {kind: live_megabytes(work, kind) for kind in KINDS}
    seconds = processor_seconds({kind: getattr(work, kind) for kind in (*KINDS, "draw")}, repeats)
    made = work.perturbation
    return Measurement(case, made.how, made.copy_bytes / 1e6, made.module_bytes / 1e6, live, seconds)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; the exit code is 1 where a step takes more than it may."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", default=["all-MiniLM-L6-v2", "mobilenet_v2"])
    parser.add_argument("--weights", default="", help="file, or random; memory and time do not depend on the weights")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=["float64", "float32"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=0, help="tokens or pixels, 0 for the backbone's own")
    parser.add_argument("--how", default="auto", choices=get_args(How))
    parser.add_argument("--distribution", default="rademacher", choices=get_args(Distribution))
    parser.add_argument("--repeats", type=int, default=7, help="of which the median counts")
    parser.add_argument("--threads", type=int, default=0, help="of torch, 0 for its own choice")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = (options.batch_size, options.size, options.how, options.distribution)
    results = [
        measure(Case(model, options.weights, dtype, *shared), options.repeats)
        for model in options.models
        for dtype in options.dtypes
    ]
    measurements = [{**asdict(result), "modules": result.modules, "passes": result.passes} for result in results]
    limits = {"limit_modules": LIMIT_MODULES, "limit_passes": LIMIT_PASSES}
    print(json.dumps({"measurements": measurements, **limits}))
    return int(not all(result.holds for result in results))


if __name__ == "__main__":
    sys.exit(main())
