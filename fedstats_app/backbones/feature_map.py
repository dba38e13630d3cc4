"""Fixed maps behind a network: unit length, random projections, random Fourier features; the same at every site.

References: Rahimi & Recht 2007 (random Fourier features, Fed3R-RF of Fani et al. 2024); Guan et al. 2025, section
"feature expansion" (FedCGS), whose text gives neither the activation nor the scale: ours are ReLU and N(0, 1/d).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedstats_app.backbones.names import parse_feature_map

# Of all draws: statistics of runs with other seeds can be added.
SEED = 0


class MappedFeatures(nn.Module):
    """A network with a map behind its features: (B, ...) -> (B, D).

    Parameters
    ----------
    network : nn.Module
        Makes features (B, d).
    feature_map : str
        As :func:`fedstats_app.backbones.names.parse_feature_map` reads it, but not "none".
    feature_dim : int
        d.

    Attributes
    ----------
    norm_bound : float
        Largest norm of a mapped feature; infinite if it depends on the network.
    """

    def __init__(self, network: nn.Module, feature_map: str, feature_dim: int) -> None:
        super().__init__()
        self.mapped = network
        self.kind, number, width = parse_feature_map(feature_map)
        self.norm_bound = {"unit": 1.0, "fourier": math.sqrt(2.0)}.get(self.kind, math.inf)
        # Not in the weights: they follow from the map's name.
        matrix = phase = np.empty(0)
        if self.kind == "relu":
            matrix = _normal(2, feature_dim, number) / math.sqrt(feature_dim)
        elif self.kind == "fourier":
            matrix, phase = _normal(0, number, feature_dim).T / width, 2 * math.pi * _uniform(1, number)
        self.matrix = nn.Buffer(torch.tensor(matrix, dtype=torch.float32), persistent=False)
        self.phase = nn.Buffer(torch.tensor(phase, dtype=torch.float32), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, D)."""
        features: Tensor = self.mapped(inputs)
        if self.kind == "unit":
            return nn.functional.normalize(features)
        projected = features @ self.matrix
        if self.kind == "relu":
            return projected.relu()
        return math.sqrt(2.0 / len(self.phase)) * torch.cos(projected + self.phase)


def _uniform(stream: int, size: int) -> NDArray[np.float64]:
    """Draw float64 uniforms in [0, 1) from Philox's raw bits, whose stream no numpy release may change."""
    bits = np.random.Philox(key=[SEED, stream]).random_raw(size)
    uniforms: NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


def _normal(stream: int, *shape: int) -> NDArray[np.float64]:
    """Draw float64 standard normals by Box and Muller's transform of :func:`_uniform`."""
    size = math.prod(shape)
    first, second = np.split(_uniform(stream, size + size % 2), 2)
    radius, angle = np.sqrt(-2.0 * np.log1p(-first)), 2.0 * math.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)
