"""Several frozen networks as one backbone: their features, each scaled to length one, side by side."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BFLOAT16, OPENVINO, TORCH, Engine
from fedstats_app.backbones.feature_map import MappedFeatures

# Samples that are read before the networks run, one after the other.
_BLOCK = 64


class JoinedNetworks(nn.Module):
    """Networks side by side: an input (B, ...) for each, in their order, to features (B, d_1 + d_2 + ...).

    Attributes
    ----------
    norm_bound : float
        Largest norm of the features; infinite if a map has none.
    """

    def __init__(self, networks: Iterable[nn.Module], feature_map: str, feature_dim: int) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        plain = feature_map == "none"
        self.map = nn.Identity() if plain else MappedFeatures(nn.Identity(), feature_map, feature_dim)
        self.norm_bound = math.sqrt(len(self.networks)) if plain else self.map.norm_bound

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the features (B, D) of one input for each network."""
        return self.join([network(own) for network, own in zip(self.networks, inputs, strict=True)])

    def join(self, features: Sequence[Tensor]) -> Tensor:
        """Return (B, D) of features (B, d) of each network."""
        mapped: Tensor = self.map(torch.cat([F.normalize(own) for own in features], dim=1))
        return mapped


class JoinedBackbone(Backbone):
    """Backbones side by side, each with its own transform, batches, engine and feature cache.

    It has no transform and takes no batches: samples go through each of :attr:`networks`, and :meth:`join` puts
    their features together.

    Parameters
    ----------
    networks : sequence of Backbone
        At least two, without a map, on one device; their order matters.
    feature_map : str
        Map behind the joined features (:func:`fedstats_app.backbones.names.parse_feature_map`).
    """

    def __init__(self, networks: Sequence[Backbone], feature_map: str = "none") -> None:
        self._networks, self.feature_map, self.device = tuple(networks), feature_map, networks[0].device
        self.name = "+".join(network.name for network in networks)
        self.kind, self.input_size = networks[0].kind, max(network.input_size for network in networks)
        self.sizes = "+".join(dict.fromkeys(network.sizes for network in networks))
        self.transform_spec = {"networks": [network.transform_spec for network in networks]}
        dims = [network.feature_dim for network in networks]
        self._joined = JoinedNetworks((network.module for network in networks), feature_map, sum(dims))
        self.module = self._joined.eval().to(self.device)
        self.feature_dim = self.join([torch.ones(1, dim) for dim in dims]).shape[1]
        parts = [feature_map, *(network.fingerprint for network in networks)]
        self.fingerprint = hashlib.sha256(" ".join(parts).encode()).hexdigest()
        self.weights_source, self.licence, self.features = (
            "; ".join(dict.fromkeys(words))
            for words in zip(*((own.weights_source, own.licence, own.features) for own in networks), strict=True)
        )
        self.features += "; of each network scaled to length one, side by side"
        self.language_head, self.largest_feature = None, math.inf

    def __repr__(self) -> str:
        return f"JoinedBackbone({', '.join(map(repr, self.networks))}, {self.fingerprint[:12]})"

    @property
    def networks(self) -> tuple[Backbone, ...]:
        """The networks, in order."""
        return self._networks

    @property
    def engine(self) -> Engine:
        """OpenVINO if it computes the features of any network."""
        found = {network.engine for network in self.networks}
        return next(engine for engine in (BFLOAT16, OPENVINO, TORCH) if engine in found)

    @property
    def engine_in_words(self) -> str:
        """The engine of each network."""
        return "; ".join(dict.fromkeys(network.engine_in_words for network in self.networks))

    def input_of(self, sample: Any) -> tuple[Tensor, ...]:
        """Return each network's input."""
        return tuple(network.input_of(sample) for network in self.networks)

    def extract_inputs(self, inputs: Iterable[Any]) -> Iterator[Tensor]:
        """Yield features (b, D) of the samples whose inputs these are, as :meth:`Backbone.extract_inputs`."""
        stream = iter(inputs)
        while block := list(itertools.islice(stream, _BLOCK)):
            of_networks = zip(self.networks, zip(*block, strict=True), strict=True)
            yield self.join([torch.cat([*network.extract_inputs(own)]) for network, own in of_networks])

    def join(self, features: Sequence[Tensor]) -> Tensor:
        """Return the backbone's features (b, D) from those of each network, (b, d) float32."""
        # Through a map one by one: the bits of a product of matrices depend on the number of rows.
        rows = [torch.split(own.to(self.device), 1 if self.expands_features else max(len(own), 1)) for own in features]
        with torch.inference_mode():
            joined = torch.cat([self._joined.join(parts) for parts in zip(*rows, strict=True)])
        return joined.clone()
