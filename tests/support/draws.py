"""Labelled features and their splits, drawn by hypothesis: from the ordinary to the degenerate."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

KINDS = ("random", "non-negative", "duplicates", "constant", "zeros", "one constant feature", "low rank")


@dataclass(frozen=True)
class Sample:
    """Labelled features spread over clients; classes and clients without samples included."""

    features: Tensor
    labels: Tensor
    clients: Tensor
    num_classes: int
    num_clients: int
    kind: str
    scale: float

    def part(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one client's features and labels."""
        mine = self.clients == index
        return self.features[mine], self.labels[mine]

    @property
    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """All clients' features and labels, in order."""
        return [self.part(index) for index in range(self.num_clients)]


@st.composite
def samples(
    draw: st.DrawFn,
    *,
    max_examples: int = 24,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
    kinds: tuple[str, ...] = KINDS,
) -> Sample:
    """Draw a federation of at most ``max_examples`` samples, 7 features, 5 classes and 6 clients."""
    n = draw(st.integers(0, max_examples))
    dim, num_classes, num_clients = draw(st.integers(1, 7)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    kind, exponent = draw(st.sampled_from(kinds)), draw(st.integers(-6, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(0, draw(st.integers(1, num_classes)), n)  # the last classes may be absent
    features = _features(kind, rng, labels, dim) * 10.0**exponent
    return Sample(
        features=torch.from_numpy(features).to(draw(st.sampled_from(dtypes))),
        labels=torch.from_numpy(labels.astype(np.int64)),
        clients=torch.from_numpy(rng.integers(0, num_clients, n)),
        num_classes=num_classes,
        num_clients=num_clients,
        kind=kind,
        scale=10.0**exponent,
    )


def _features(kind: str, rng: np.random.Generator, labels: np.ndarray, dim: int) -> np.ndarray:
    n = len(labels)
    features = rng.normal(size=(n, dim)) + rng.normal(size=(5, dim))[labels]
    if kind == "non-negative":
        return np.maximum(features, 0.0)
    if kind == "duplicates":
        return features[rng.integers(0, max(n, 1), n) // 3] if n else features
    if kind == "constant":
        return np.full((n, dim), 0.3)
    if kind == "zeros":
        return np.zeros((n, dim))
    if kind == "one constant feature":
        features[:, 0] = 1000.1
    if kind == "low rank":
        return features[:, :1] * rng.normal(size=(1, dim))
    return features
