"""Fed3R without ridge and without normalised rows is analytic federated learning (AFL, He et al. 2025)."""

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch

from fedstats_app.methods import Fed3RMethod
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from tests.support.compare import relative_difference

DIM, NUM_CLASSES = 8, 4
Client = tuple[np.ndarray, np.ndarray]
Local = tuple[np.ndarray, np.ndarray]


def clients() -> list[Client]:
    """Draw clients of 3 to 40 samples, some with fewer than features, each of two classes."""
    rng = np.random.default_rng(0)
    drawn = []
    for number, size in enumerate((40, 3, 12, 5, 30)):
        labels = (number + rng.integers(0, 2, size)) % NUM_CLASSES
        drawn.append((rng.normal(size=(size, DIM)) + labels[:, None] * 0.5, labels))
    return drawn


def local_solution(client: Client, gamma: float) -> Local:
    """Return a client's ridge solution, (d, C), and its regularised Gram matrix, as AFL's clients upload."""
    features, labels = client
    gram = features.T @ features + gamma * np.eye(DIM)
    return np.linalg.solve(gram, features.T @ np.eye(NUM_CLASSES)[labels]), gram


def absolute_aggregation(one: Local, other: Local) -> Local:
    """Aggregate two solutions by the AA law: each is weighted by a matrix, and Gram matrices add."""
    (first, u), (second, v) = one, other
    both = np.linalg.inv(u + v)

    def weight(own: np.ndarray, others: np.ndarray) -> np.ndarray:
        ratio = np.linalg.inv(own) @ others
        return np.eye(DIM) - ratio + ratio @ both @ others

    return weight(u, v) @ first + weight(v, u) @ second, u + v


def afl(of_clients: list[Client], gamma: float = 1.0) -> np.ndarray:
    """Return AFL's solution, (C, d): solutions aggregated one by one, then the clients' ridges taken out (RI)."""
    weight, gram = reduce(absolute_aggregation, [local_solution(client, gamma) for client in of_clients])
    return np.linalg.solve(gram - len(of_clients) * gamma * np.eye(DIM), gram @ weight).T


def fed3r(of_clients: list[Client], method: str) -> torch.Tensor:
    options = AppConfig.of(method=method).options_of(method)
    statistics = [
        FeatureStatistics.from_features(torch.from_numpy(features), torch.from_numpy(labels), NUM_CLASSES)
        for features, labels in of_clients
    ]
    return Fed3RMethod(options).solve(reduce(add, statistics)).weight


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_without_ridge_and_normalisation_the_head_is_afls(gamma: float) -> None:
    of_clients = clients()
    head = fed3r(of_clients, "fed3r@ridge-lambda=0@normalize=false")
    assert relative_difference(head, afl(of_clients, gamma)) <= 1e-9
    features, labels = (np.concatenate(parts) for parts in zip(*of_clients, strict=True))
    assert relative_difference(head, np.linalg.lstsq(features, np.eye(NUM_CLASSES)[labels], rcond=None)[0].T) <= 1e-9
