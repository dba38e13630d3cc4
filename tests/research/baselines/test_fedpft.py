import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from research.baselines import drawn_samples, drawn_samples_of_all, fitted_mixtures
from research.baselines.mixtures import COVARIANCES, Covariance
from tests.research.baselines.conftest import Clients


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_one_component_is_the_moments_of_the_class(clients: Clients, covariance: Covariance) -> None:
    features, labels = clients[1]
    found = fitted_mixtures(features, labels, components=1, covariance=covariance, seed=0)
    assert found.class_ids.tolist() == [1, 2, 3] and found.counts.tolist() == [9, 14, 4]
    assert found.covariance == covariance
    for row, class_id in enumerate(found.class_ids):
        own = features[labels == class_id].double().numpy()
        full = np.cov(own.T, bias=True) + 1e-6 * np.eye(6)  # what scikit-learn adds
        expected = {"full": full, "diagonal": np.diag(full), "spherical": np.diag(full).mean()}[covariance]
        assert np.allclose(found.means[row, 0], own.mean(axis=0))
        assert np.allclose(found.covariances[row, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_samples_are_as_likely_as_those_that_scikit_learn_draws(clients: Clients, covariance: Covariance) -> None:
    features, labels = clients[1]
    found = fitted_mixtures(features, labels, components=3, covariance=covariance, seed=1)
    assert found.class_ids.tolist() == [1, 2, 3]  # all have more than three
    kind = {"full": "full", "diagonal": "diag", "spherical": "spherical"}[covariance]
    oracle = GaussianMixture(3, covariance_type=kind, random_state=1, max_iter=100)
    oracle.fit(features[labels == 2].double().numpy())
    drawn, of_class = drawn_samples(found, torch.tensor([0, 20_000, 0]), (5,))
    assert of_class.tolist() == [2] * 20_000
    expected = oracle.score_samples(oracle.sample(20_000)[0]).mean()
    assert oracle.score_samples(drawn.double().numpy()).mean() == pytest.approx(expected, abs=0.08)


def test_every_client_gives_as_many_as_it_has_whatever_the_order(clients: Clients) -> None:
    mixtures = {k: fitted_mixtures(*own, components=2, covariance="spherical", seed=0) for k, own in clients.items()}
    features, labels = drawn_samples_of_all(mixtures, seed=3)
    again, _ = drawn_samples_of_all(dict(reversed(mixtures.items())), seed=3)
    assert torch.equal(features, again) and labels.bincount().tolist() == [18, 23, 23, 27]
    # Two clients with the same mixtures must not give the same samples.
    twins, _ = drawn_samples_of_all({0: mixtures[0], 1: mixtures[0]}, seed=3)
    assert not torch.equal(*twins.chunk(2))
    with pytest.raises(ValueError, match="clients: there must be at least one"):
        drawn_samples_of_all({}, seed=0)
