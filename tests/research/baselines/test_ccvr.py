import numpy as np
import pytest
import torch

from research.baselines import ClassMixtures, ccvr_samples, class_gaussians, pooled_gaussians
from tests.support.compare import relative_difference
from tests.support.golden import FEDERATIONS, Federation


@pytest.mark.parametrize("name", FEDERATIONS[::3])
def test_the_pooled_covariance_is_the_oracles(name: str) -> None:
    golden = Federation(name)
    labels, clients = (torch.from_numpy(golden[key].astype(np.int64)) for key in ("labels", "clients"))
    parts = {k: clients == k for k in range(golden.num_clients)}
    pooled = pooled_gaussians({k: class_gaussians(golden.features[part], labels[part]) for k, part in parts.items()})
    weights = (pooled.counts - 1).double().reshape(-1, 1, 1)
    freedom, gamma = int(pooled.counts.sum()) - len(pooled.counts), float(golden["gamma"])
    mean = (pooled.counts.unsqueeze(1) * pooled.means[:, 0]).sum(dim=0)
    gram = (weights * pooled.covariances[:, 0]).sum(dim=0) + gamma * freedom * torch.eye(pooled.feature_dim)
    gram += torch.outer(mean, mean) / int(pooled.counts.sum())
    assert relative_difference(gram, torch.from_numpy(golden["oracle_full_G"])) <= 1e-12


def test_draws_have_the_moments_that_they_are_drawn_from(gaussians: dict[int, ClassMixtures]) -> None:
    pooled = pooled_gaussians(gaussians)
    features, labels = ccvr_samples(gaussians, per_class=40_000, seed=0)
    for row, class_id in enumerate(pooled.class_ids):
        own = features[labels == class_id].double()
        assert torch.allclose(own.mean(dim=0), pooled.means[row, 0], atol=0.03)
        assert torch.allclose(own.T.cov(), pooled.covariances[row, 0], atol=0.06)
