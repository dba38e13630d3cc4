"""A bound on the norm of a backbone's features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from fedstats_app.backbones.backbone import Backbone

# Above the largest feature of the probes where the architecture bounds nothing.
PROBE_FACTOR = 10.0
_CELLS = (1, 2, 4, 8, 16, 32)  # pixels of a probe's squares are this many to a side
_WORDS = ("the", "cat", "sat", "on", "a", "mat", "was", "good", "bad", "news", "of", "3", "players", "Rome", "why", "?")


@dataclass(frozen=True)
class FeatureNorm:
    """A bound of the Euclidean norm of features, and in words how it is known."""

    bound: float
    source: str


def feature_norm(backbone: Backbone) -> FeatureNorm:
    """Return a bound of the norm of a backbone's features.

    An encoder that divides by the length gives 1, and a largest feature f gives f sqrt(d). For other networks it is ten
    times the largest norm of a few probes: images of random squares from one colour to noise, or texts of 1 to 100
    words.
    """
    module, dim = backbone.module, backbone.feature_dim
    if (bound := getattr(module, "norm_bound", math.inf)) < math.inf:
        mapped = "" if backbone.feature_map == "none" else f", feature-map {backbone.feature_map}"
        return FeatureNorm(bound, f"features have length one{mapped}")
    if getattr(module, "normalise", False):
        return FeatureNorm(1.0, "the encoder divides by the length")
    if (largest := backbone.largest_feature) < math.inf:
        return FeatureNorm(largest * math.sqrt(dim), f"{largest:g} sqrt(d): no feature is above {largest:g}")
    probes = _images(backbone.input_size) if backbone.kind == "image" else _texts()
    longest = max(float(torch.linalg.vector_norm(block, dim=1).max()) for block in backbone.extract(probes))
    return FeatureNorm(PROBE_FACTOR * longest, f"{PROBE_FACTOR:.0f} times the largest of the probes")


def _images(side: int) -> Iterator[Image.Image]:
    rng = np.random.default_rng(0)
    for value in (0, 255):
        yield Image.new("RGB", (side, side), (value, value, value))
    for cells in (*_CELLS, side):
        squares = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        for pixels in (squares, 255 * (squares > 127).astype(np.uint8)):
            yield Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)


def _texts() -> Iterator[str]:
    rng = np.random.default_rng(0)
    for length in (1, 1, 2, 3, 5, 10, 20, 40, 100):
        yield " ".join(rng.choice(_WORDS, length))
