"""A network of some hundred parameters with everything that matters in training, and data for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedstats_app.heads import LinearHead
from fedstats_app.training.samples import TensorSamples
from tests.support.networks import small_network


@pytest.fixture
def network() -> nn.Sequential:
    return small_network()


@pytest.fixture
def head() -> LinearHead:
    """Three classes on eight features, float64 as solvers give it."""
    generator = torch.Generator().manual_seed(6)
    weight, bias = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((3, 8), (3,)))
    return LinearHead(weight, bias)


@pytest.fixture
def make_images() -> Callable[..., TensorSamples]:
    """Return n images (3, 8, 8) of three classes, a little easier to tell apart than noise."""

    def make(n: int, seed: int = 0) -> TensorSamples:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (n,), generator=generator)
        images = torch.randn(n, 3, 8, 8, generator=generator)
        images[torch.arange(n), labels] += 0.5
        return TensorSamples(images, labels)

    return make


@pytest.fixture
def make_features() -> Callable[..., TensorSamples]:
    """Return n features (8,) of three classes."""

    def make(n: int, seed: int = 0) -> TensorSamples:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (n,), generator=generator)
        return TensorSamples(torch.randn(n, 8, generator=generator) + labels[:, None], labels)

    return make
