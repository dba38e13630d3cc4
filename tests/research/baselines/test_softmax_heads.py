import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedstats_app.heads import LinearHead
from fedstats_app.training.training_options import LocalOptions
from research.baselines import average_heads, softmax_head
from tests.research.baselines.conftest import Clients


@pytest.fixture
def heads(clients: Clients) -> list[LinearHead]:
    return [softmax_head(*own, 4, key=(0, client)) for client, own in clients.items()]


def test_a_softmax_head_nears_the_minimum_that_scikit_learn_finds(clients: Clients) -> None:
    features, labels = (torch.cat(part) for part in zip(*clients.values(), strict=True))
    decay = 0.05  # on weight and bias alike: a constant feature takes the bias's place
    ones = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    options = LocalOptions(epochs=2000, batch_size=1000, momentum=0.9, learning_rate=0.05, weight_decay=decay)
    head = softmax_head(features, labels, 4, options=options)
    oracle = LogisticRegression(C=1 / (decay * len(ones)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(ones.double().numpy(), labels.numpy())
    found = torch.cat([head.weight, head.bias.unsqueeze(1)], dim=1)
    assert torch.allclose(found, torch.from_numpy(oracle.coef_), atol=1e-4)


def test_the_ensemble_of_logits_is_one_head(clients: Clients, heads: list[LinearHead]) -> None:
    features, weights = clients[1][0], [3.0, 0.0, 1.0, 2.0, 4.0]
    logits = sum(w * head.logits(features, mask_absent=False) for w, head in zip(weights, heads, strict=True)) / 10.0
    assert isinstance(logits, torch.Tensor)
    averaged = average_heads(heads, weights)
    assert torch.allclose(averaged.logits(features), logits, atol=1e-12) and averaged.present.all()
