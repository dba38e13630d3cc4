"""The evidence of labels: against the normal density itself, and what it does not depend on."""

import math

import pytest
import torch
from torch import Tensor

from fedstats_app.heads.evidence import RIDGES, label_evidence
from fedstats_app.statistics import FeatureStatistics


def drawn(n: int = 40, d: int = 6, *, signal: float = 1.0) -> tuple[Tensor, Tensor]:
    """Features (n, d) float64 that know the labels (n,) of three classes to some degree."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (n,), generator=draw)
    means = torch.randn(3, d, generator=draw, dtype=torch.float64)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) + signal * means[labels] + 5.0, labels


def evidence(features: Tensor, labels: Tensor) -> float:
    return label_evidence(FeatureStatistics.from_features(features, labels, 3))


def test_it_is_the_normal_density_of_centred_labels() -> None:
    features, labels = drawn()
    n, centred = len(labels), features - features.mean(dim=0)
    targets = torch.nn.functional.one_hot(labels, 3).double()
    targets -= targets.mean(dim=0)
    found = []
    for ridge in (centred.square().sum() / n * RIDGES).tolist():
        covariance = torch.eye(n, dtype=torch.float64) + centred @ centred.T / ridge  # of a column, over its variance
        scale = (
            float((targets * torch.linalg.solve(covariance, targets)).sum()) / n
        )  # the best variance, of all columns
        density = -float(torch.linalg.slogdet(covariance).logabsdet) - n * math.log(scale)
        found.append(density / (2 * n))
    assert evidence(features, labels) == pytest.approx(max(found), rel=1e-9)


def test_shifts_rotations_scales_and_absent_classes_change_nothing_and_signal_raises_it() -> None:
    features, labels = drawn()
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).Q
    usual = evidence(features, labels)
    assert evidence(7.0 * (features - 3.0) @ rotation, labels) == pytest.approx(usual, rel=1e-9)
    assert label_evidence(FeatureStatistics.from_features(features, labels, 5)) == pytest.approx(usual, rel=1e-9)
    weak, strong = (evidence(*drawn(signal=signal)) for signal in (0.2, 3.0))
    assert weak < usual < strong


def test_without_samples_or_gram_matrix_it_is_refused() -> None:
    with pytest.raises(ValueError, match="needs samples"):
        label_evidence(FeatureStatistics.zeros(3, 4, gram=True))
    with pytest.raises(ValueError, match="Gram"):
        label_evidence(FeatureStatistics.from_features(*drawn(), 3, gram=False))
