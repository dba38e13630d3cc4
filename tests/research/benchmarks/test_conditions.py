"""Condition numbers of scatters: of the eigenvalues that are there, and not of those that rounding leaves."""

import pytest
import torch

from research.benchmarks import conditions
from research.benchmarks.features import Features


def test_scatters_are_those_of_the_samples(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(90) % 4  # of five classes
    features = 3.0 + torch.randn(90, 6, generator=torch.Generator().manual_seed(0)) + torch.eye(4, 6)[labels]
    data = Features(features, labels, features, labels, 5)
    monkeypatch.setattr(conditions, "features_of", lambda config: data)
    between, within = conditions.measure("num-clients=3")
    means = torch.stack([features[labels == one].double().mean(dim=0) for one in range(4)])[labels]
    for found, scattered in ((between, means - features.double().mean(dim=0)), (within, features - means)):
        values = torch.linalg.svdvals(scattered) ** 2
        assert found.exact == pytest.approx(float(values[0] / values[found.rank - 1]), rel=1e-9)
    assert [(one.scatter, one.rank) for one in (between, within)] == [("between", 3), ("within", 6)]
    conditions.main(["num-clients=3"])
    assert f"| num-clients=3 | within | 6 | {within.exact:.2g} |" in capsys.readouterr().out
