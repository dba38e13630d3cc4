"""Heads of drawn features: on Gaussian classes all three heads are alike."""

from typing import Literal

import pytest
import torch

from fedstats_app.methods.fedcgs import FedCGSOptions
from research.baselines import ClassMixtures
from research.benchmarks import drawn_heads
from research.benchmarks.features import Features


def test_on_gaussian_classes_of_one_covariance_all_are_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(900) % 3
    features = 2.0 * torch.eye(3, 5)[labels] + torch.randn(900, 5, generator=generator)
    data = Features(features[:600], labels[:600], features[600:], labels[600:], 4)  # the last class has no sample
    found = drawn_heads.compared(data, 0, FedCGSOptions())
    assert min(found.values()) > 75.0 and max(found.values()) - min(found.values()) < 4.0


@pytest.mark.parametrize("covariance", ["total", "within"])
def test_draws_have_the_covariance_that_is_asked_for(
    covariance: Literal["total", "within"], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.arange(60) % 2
    features = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) + 9.0 * labels.unsqueeze(1)
    means = torch.stack([features[labels == one].mean(dim=0) for one in range(2)])[labels]
    apart = features - (features.mean(dim=0) if covariance == "total" else means)
    given: list[ClassMixtures] = []

    def drawn(gaussians: ClassMixtures, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        given.append(gaussians)
        return features, labels

    monkeypatch.setattr(drawn_heads, "drawn_samples", drawn)
    found = drawn_heads.compared(
        Features(features, labels, features, labels, 2), 0, FedCGSOptions(covariance=covariance, shrinkage=0.0)
    )
    assert found["FedCGS"] == 100.0
    expected = apart.T @ apart / (59 if covariance == "total" else 58)
    for shared in given[0].covariances[:, 0]:
        torch.testing.assert_close(shared, expected.double(), rtol=1e-4, atol=1e-4)
