"""Samples of another kind, found by their distance from the training data (:mod:`fedstats_app.heads.likeness`).

    python -m research.benchmarks.likeness "dataset=parquet:/data/signs" "dataset=parquet:/data/trashnet"

An experiment is one of :func:`research.benchmarks.features.settings_of`. The limit is of every other test sample. One
line of JSON is printed per experiment: the share beyond it of the other test samples, of 16 pictures of one colour, of
16 of noise, and of the test samples of the other experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.heads.likeness import Likeness, limit
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks.features import Features, config_of, features_of
from research.benchmarks.lines import experiments_of, run

PIXELS, NUM_PICTURES = 224, 16


@dataclass(frozen=True)
class Found:
    """Shares in per cent beyond the limit of one data set: of samples like it, and of others."""

    experiment: str
    alike: float
    blank: float
    noise: float
    others: float


def pictures() -> tuple[list[Image.Image], list[Image.Image]]:
    """Draw pictures of one colour, and of noise."""
    draw = np.random.default_rng(0)
    colours = draw.integers(0, 255, (NUM_PICTURES, 1, 1, 3), dtype=np.uint8)
    noise = draw.integers(0, 255, (NUM_PICTURES, PIXELS, PIXELS, 3), dtype=np.uint8)
    blank = [np.broadcast_to(colour, (PIXELS, PIXELS, 3)) for colour in colours]
    return [Image.fromarray(np.ascontiguousarray(drawn)) for drawn in blank], [
        Image.fromarray(drawn) for drawn in noise
    ]


def shares(features: Features, others: Sequence[Tensor]) -> list[float]:
    """Return the shares beyond the limit of every second test sample, and of each other set of features."""
    likeness = Likeness.of(FeatureStatistics.from_features(features.train, features.train_labels, features.num_classes))
    farthest = limit(likeness.distances(features.test[::2]))
    if farthest is None:
        raise ValueError(f"a limit needs 198 test samples, got {len(features.test)}")
    return [
        100.0 * float((likeness.distances(part) > farthest).double().mean()) for part in (features.test[1::2], *others)
    ]


def of_pictures(config: AppConfig, drawn: list[Image.Image]) -> Tensor:
    """Return (n, d) features of pictures."""
    backbone = loaded_backbone(config.backbone_for(own_data=False), NodeConfig("", 0, 1).engine_root(config.cache))
    return torch.cat([batch.cpu() for batch in backbone.extract(drawn)])


def table(lines: Sequence[Found]) -> str:
    """Return the shares as Markdown."""
    rows = ["| data | alike | one colour | noise | other data |", "|---|---|---|---|---|"]
    for line in lines:
        cells = [f"{value:.1f}" for value in (line.alike, line.blank, line.noise, line.others)]
        rows.append(f"| {line.experiment.split()[0].rpartition('/')[2]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line of JSON per experiment, then the table."""
    options = experiments_of(__doc__, clients=[1], seeds=1).parse_args(argv)
    loaded = {name: features_of(config_of(name)) for name in options.experiments or [""]}

    def measure(experiment: str) -> Iterator[Found]:
        odd = [of_pictures(config_of(experiment), drawn) for drawn in pictures()]
        others = [other.test for name, other in loaded.items() if name != experiment]
        alike, blank, noise, *rest = shares(loaded[experiment], [*odd, *([torch.cat(others)] if others else [])])
        yield Found(experiment, alike, blank, noise, *(rest or [float("nan")]))

    run(options, Found, measure, table)


if __name__ == "__main__":
    main()
