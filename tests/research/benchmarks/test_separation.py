"""What of single samples leaves a node by a Gram matrix, and by what stands in for one."""

import pytest
import torch

from fedstats_app.privacy import NodePolicy
from research.benchmarks.separation import measure


def relu_features(num_samples: int, dim: int) -> torch.Tensor:
    """Draw features of one class, half of them 0, with directions in common as a network's have."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(num_samples, 3, generator=generator) @ torch.randn(3, dim, generator=generator)
    return (common / 2 + torch.randn(num_samples, dim, generator=generator)).clamp(min=0.0)


FEATURES, LABELS = relu_features(240, 96), torch.arange(240) % 2


@pytest.mark.parametrize("site", ["1x6", "2x10", "1x40"])
def test_a_gram_matrix_of_few_samples_is_the_samples(site: str) -> None:
    assert measure(FEATURES, LABELS, site, NodePolicy(), seeds=1).given_away > 0.4


@pytest.mark.parametrize("site", ["1x6", "2x10", "1x40", "2x45"])  # below 2 d, and the last just below d
def test_by_default_a_node_sends_what_says_little_of_each(site: str) -> None:
    found = measure(FEATURES, LABELS, site, NodePolicy(min_gram_samples=None), seeds=2)
    assert found.rank <= 9 and found.given_away < 0.2
