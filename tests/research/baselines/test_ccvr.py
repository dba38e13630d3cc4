import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from research.baselines import ClassMixtures, ccvr_samples, class_gaussians, pooled_gaussians
from tests.support.compare import relative_difference
from tests.support.golden import FEDERATIONS, Federation


@pytest.mark.parametrize("name", FEDERATIONS[::3])
def test_the_pooled_covariance_is_the_oracles(name: str) -> None:
    golden = Federation(name)
    labels, clients = (torch.from_numpy(golden[key].astype(np.int64)) for key in ("labels", "clients"))
    of_client = {
        k: class_gaussians(golden.features[clients == k], labels[clients == k]) for k in range(golden.num_clients)
    }
    pooled = pooled_gaussians(of_client)
    weights = (pooled.counts - 1).double().reshape(-1, 1, 1)
    freedom, gamma = int(pooled.counts.sum()) - len(pooled.counts), float(golden["gamma"])
    mean = (pooled.counts.unsqueeze(1) * pooled.means[:, 0]).sum(dim=0)
    gram = (weights * pooled.covariances[:, 0]).sum(dim=0) + gamma * freedom * torch.eye(pooled.feature_dim)
    gram += torch.outer(mean, mean) / int(pooled.counts.sum())
    assert relative_difference(gram, torch.from_numpy(golden["oracle_full_G"])) <= 1e-12


@settings(deadline=None, max_examples=20)
@given(owners=st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_the_split_does_not_matter(owners: list[int]) -> None:
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels, owner = torch.arange(12) % 2, torch.tensor(owners)
    split = {k: class_gaussians(features[owner == k], labels[owner == k]) for k in set(owners)}
    whole, found = pooled_gaussians({0: class_gaussians(features, labels)}), pooled_gaussians(split)
    assert torch.equal(found.counts, whole.counts)
    assert torch.allclose(found.means, whole.means, rtol=1e-12, atol=1e-12)
    assert torch.allclose(found.covariances, whole.covariances, rtol=1e-12, atol=1e-12)


def test_draws_have_the_moments_that_they_are_drawn_from(gaussians: dict[int, ClassMixtures]) -> None:
    pooled = pooled_gaussians(gaussians)
    features, labels = ccvr_samples(gaussians, per_class=40_000, seed=0)
    for row, class_id in enumerate(pooled.class_ids):
        own = features[labels == class_id].double()
        assert torch.allclose(own.mean(dim=0), pooled.means[row, 0], atol=0.03)
        assert torch.allclose(own.T.cov(), pooled.covariances[row, 0], atol=0.06)
