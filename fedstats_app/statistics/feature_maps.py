"""Maps between the backbone's pooled feature and the statistics, drawn from a seed so that all clients share them.

References: Rahimi & Recht 2007 (random Fourier features, Fed3R-RF of Fani et al. 2024); Guan et al. 2025, section
"feature expansion" (FedCGS), whose text gives neither the activation nor the scale: ours are ReLU and N(0, 1/d).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import normalize_rows

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "identity": lambda features: features,
}


class FeatureMap(ABC):
    """A deterministic map from features (n, d) to features (n, D), rebuilt from its dataclass fields."""

    kind: ClassVar[str]

    @abstractmethod
    def output_dim(self, feature_dim: int) -> int:
        """Return D for a given d."""

    @abstractmethod
    def norm_bound(self, feature_dim: int, norm: float) -> float:
        """Return the largest norm of a mapped feature, for features (d,) whose norm is at most ``norm``."""

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """Return the mapped features."""

    def to_dict(self) -> dict[str, str | int | float]:
        """Return kind and parameters as plain values, for the wire and the head's metadata."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # a dataclass


@dataclass(frozen=True)
class IdentityMap(FeatureMap):
    """The features as they are."""

    kind: ClassVar[str] = "identity"

    def output_dim(self, feature_dim: int) -> int:
        """Return d."""
        return feature_dim

    def norm_bound(self, feature_dim: int, norm: float) -> float:
        """Return ``norm``."""
        return norm

    def __call__(self, features: Tensor) -> Tensor:
        """Return the features unchanged."""
        return features


@dataclass(frozen=True)
class UnitLength(FeatureMap):
    """f / |f|; a feature of zeros stays."""

    kind: ClassVar[str] = "unit-length"

    def output_dim(self, feature_dim: int) -> int:
        """Return d."""
        return feature_dim

    def norm_bound(self, feature_dim: int, norm: float) -> float:
        """Return 1."""
        return 1.0

    def __call__(self, features: Tensor) -> Tensor:
        """Return the features scaled to length 1."""
        return normalize_rows(features)[0]


@dataclass(frozen=True)
class RandomFourierFeatures(FeatureMap):
    """sqrt(2/D) cos(f Omega^T + u), approximating a Gaussian kernel of the given width.

    Parameters
    ----------
    num_features : int
        D.
    kernel_width : float
        sigma > 0: Omega ~ N(0, 1/sigma^2), in units of feature distance.
    seed : int
        All clients must use the same.
    """

    num_features: int
    kernel_width: float
    seed: int
    kind: ClassVar[str] = "random-fourier"

    def __post_init__(self) -> None:
        _check(self.num_features, self.seed)
        if not (math.isfinite(self.kernel_width) and self.kernel_width > 0):
            raise ValueError(f"kernel_width must be positive and finite, got {self.kernel_width}")
        # to_dict must give a float also where 1 was given for 1.0: the other side takes nothing else.
        object.__setattr__(self, "kernel_width", float(self.kernel_width))

    def output_dim(self, feature_dim: int) -> int:
        """Return D."""
        return self.num_features

    def norm_bound(self, feature_dim: int, norm: float) -> float:
        """Return sqrt(2): no cosine is larger than 1."""
        return math.sqrt(2.0)

    def __call__(self, features: Tensor) -> Tensor:
        """Return (n, D) float32 random Fourier features of (n, d) features."""
        omega, phase = _fourier_parameters(self.seed, self.num_features, features.shape[1])
        omega, phase = omega.to(features.device), phase.to(features.device)
        return random_fourier_features(features.to(torch.float32), omega / self.kernel_width, phase)


@dataclass(frozen=True)
class RandomProjection(FeatureMap):
    """activation(f R) with R (d, D) ~ N(0, 1/d).

    Parameters
    ----------
    num_features : int
        D.
    seed : int
        All clients must use the same.
    activation : str
        "relu", "tanh" or "identity".
    """

    num_features: int
    seed: int
    activation: str = "relu"
    kind: ClassVar[str] = "random-projection"

    def __post_init__(self) -> None:
        _check(self.num_features, self.seed)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {self.activation!r}")

    def output_dim(self, feature_dim: int) -> int:
        """Return D."""
        return self.num_features

    def norm_bound(self, feature_dim: int, norm: float) -> float:
        """Return ``norm`` times a bound of R's largest singular value, which fails for one seed in 10^10 at most.

        sqrt(d) R has standard normal entries: beyond sqrt(d) + sqrt(D) + t with probability exp(-t^2 / 2) (Davidson and
        Szarek 2001). No activation makes an entry larger, and tanh none larger than 1.
        """
        dim, size = math.sqrt(feature_dim), math.sqrt(self.num_features)
        bound = norm * (dim + size + 7.0) / dim
        return min(bound, size) if self.activation == "tanh" else bound

    def __call__(self, features: Tensor) -> Tensor:
        """Return (n, D) float32 projected features of (n, d) features."""
        projection = _projection_matrix(self.seed, features.shape[1], self.num_features).to(features.device)
        return random_projection(features.to(torch.float32), projection, self.activation)


def feature_map_from_dict(values: Mapping[str, object]) -> FeatureMap:
    """Rebuild a map from :meth:`FeatureMap.to_dict`.

    Raises
    ------
    ValueError
        If the kind is unknown or a parameter is missing, unknown, of a wrong type or out of range.
    """
    parameters = dict(values)
    kind = parameters.pop("kind", None)
    makers = {cls.kind: cls for cls in (IdentityMap, UnitLength, RandomFourierFeatures, RandomProjection)}
    if not isinstance(kind, str) or kind not in makers:
        raise ValueError(f"feature map kind must be one of {sorted(makers)}, got {kind!r}")
    types = get_type_hints(makers[kind])
    expected = {one.name: types[one.name] for one in fields(makers[kind])}
    if set(parameters) != set(expected) or any(type(parameters[key]) is not expected[key] for key in expected):
        wanted = ", ".join(f"{key}: {value.__name__}" for key, value in expected.items()) or "no parameters"
        raise ValueError(f"feature map {kind!r} takes {wanted}, got {parameters}")
    made: FeatureMap = makers[kind](**parameters)  # type: ignore[arg-type]  # types were checked just above
    return made


def random_fourier_features(features: Tensor, omega: Tensor, phase: Tensor) -> Tensor:
    """Return sqrt(2/D) cos(f Omega^T + u) of features (n, d), frequencies (D, d) and phases (D,) in [0, 2 pi)."""
    return math.sqrt(2.0 / len(phase)) * torch.cos(features @ omega.T + phase)


def random_projection(features: Tensor, projection: Tensor, activation: str = "relu") -> Tensor:
    """Return activation(f R) for features (n, d) and a projection R (d, D)."""
    return ACTIVATIONS[activation](features @ projection)


def median_distance(features: Tensor) -> float:
    """Return the median distance between pairs of (n, d) features, n >= 2: the usual width of a Gaussian kernel."""
    if len(features) < 2:
        raise ValueError(f"the median distance needs at least 2 features, got {len(features)}")
    return float(torch.pdist(features.to(torch.float64)).median())


def _check(num_features: int, seed: int) -> None:
    if not 1 <= num_features <= 100_000:
        raise ValueError(f"num_features must lie in [1, 100000], got {num_features}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie in [0, 2^63), got {seed}")


@functools.lru_cache(maxsize=2)
def _fourier_parameters(seed: int, num_features: int, feature_dim: int) -> tuple[Tensor, Tensor]:
    omega = _standard_normal(seed, 0, num_features * feature_dim).reshape(num_features, feature_dim)
    phase = 2 * math.pi * _uniform(seed, 1, num_features)
    return torch.from_numpy(omega.astype(np.float32)), torch.from_numpy(phase.astype(np.float32))


@functools.lru_cache(maxsize=2)
def _projection_matrix(seed: int, feature_dim: int, num_features: int) -> Tensor:
    normal = _standard_normal(seed, 2, feature_dim * num_features).reshape(feature_dim, num_features)
    return torch.from_numpy((normal / math.sqrt(feature_dim)).astype(np.float32))


def _uniform(seed: int, stream: int, size: int) -> np.ndarray:
    """Return float64 uniforms in [0, 1) from Philox's raw bits, whose stream no numpy release may change."""
    bits = np.random.Philox(key=[seed, stream]).random_raw(size)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _standard_normal(seed: int, stream: int, size: int) -> np.ndarray:
    """Return float64 standard normals by Box and Muller's transform of :func:`_uniform`."""
    half = (size + 1) // 2
    uniform = _uniform(seed, stream, 2 * half)
    radius = np.sqrt(-2.0 * np.log1p(-uniform[:half]))
    angle = 2.0 * math.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
