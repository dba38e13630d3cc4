"""Heads of drawn features: on Gaussian classes all three heads are alike."""

import torch

from fedstats_app.methods.fedcgs import FedCGSOptions
from research.benchmarks import drawn_heads
from research.benchmarks.features import Features


def test_on_gaussian_classes_of_one_covariance_all_are_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(900) % 3
    features = 2.0 * torch.eye(3, 5)[labels] + torch.randn(900, 5, generator=generator)
    data = Features(features[:600], labels[:600], features[600:], labels[600:], 4)  # the last class has no sample
    found = drawn_heads.compared(data, 0, FedCGSOptions())
    assert min(found.values()) > 75.0 and max(found.values()) - min(found.values()) < 4.0
