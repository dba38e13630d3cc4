"""The papers' own splits, against literal versions of their descriptions and published numbers."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedstats_app.data import DatasetError
from fedstats_app.data.paper_partitions import fedcgs_partition, fedcof_partition

CIFAR_100 = np.repeat(np.arange(100), 500)


def pairs(labels: np.ndarray, parts: list[np.ndarray]) -> int:
    """Count the (client, class) pairs: the rows M that FedCOF's server holds."""
    return sum(len(np.unique(labels[part])) for part in parts)


@pytest.mark.parametrize(("seed", "rows"), [(0, 2870), (1, 2887), (2, 2881), (3, 2915), (4, 2943)])
def test_fedcof_gives_the_published_number_of_means(seed: int, rows: int) -> None:
    parts = fedcof_partition(CIFAR_100, 100, alpha=0.1, seed=seed)
    assert pairs(CIFAR_100, parts) == rows
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(50_000))


def literal_fedcof(labels: np.ndarray, num_clients: int, alpha: float, seed: int) -> list[list[int]]:
    """Follow the description word by word, with the global generator and Python lists."""
    before = np.random.get_state()
    try:
        np.random.seed(seed)
        classes = range(labels.max() + 1)
        probabilities = [np.random.dirichlet([alpha] * len(classes)) for _ in range(num_clients)]
        pools = [[i for i, label in enumerate(labels) if label == c] for c in classes]
        for pool in pools:
            np.random.shuffle(pool)
        clients: list[list[int]] = []
        for k in range(num_clients):
            clients.append([])
            for _ in range(len(labels) // num_clients):
                c = int(np.argmax(np.random.multinomial(1, probabilities[k])))
                clients[k].append(pools[c].pop())
                if not pools[c] and any(pools):
                    for j, p in enumerate(probabilities):
                        p[c] = 0.0
                        probabilities[j] = p / p.sum()
        return clients
    finally:
        np.random.set_state(before)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 9), st.integers(3, 12), st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
def test_fedcof_is_the_description_draw_for_draw(
    num_classes: int, num_clients: int, per_class: int, alpha: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), per_class))
    num_clients = min(num_clients, len(labels))
    parts = fedcof_partition(labels, num_clients, alpha=alpha, seed=seed)
    assert [part.tolist() for part in parts] == literal_fedcof(labels, num_clients, alpha, seed)


def test_fedcof_goes_on_where_a_client_is_left_without_classes() -> None:
    """At this alpha most clients want one class only, and the later ones find it exhausted."""
    labels = np.repeat(np.arange(3), 20)
    with np.errstate(all="raise"):
        parts = fedcof_partition(labels, 12, alpha=0.02, seed=0)
    assert [len(part) for part in parts] == [5] * 12
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(60))


def test_fedcof_passes_over_classes_without_samples() -> None:
    labels = np.array([0, 4, 4, 0, 0, 4])
    parts = fedcof_partition(labels, 2, alpha=0.5, seed=3)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(6))


@pytest.mark.parametrize("split", [fedcof_partition, fedcgs_partition])
def test_global_generator_is_not_touched(split: object) -> None:
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    split(np.repeat(np.arange(5), 40), 4, alpha=0.5, seed=1)  # type: ignore[operator]
    assert np.random.rand() == expected


def literal_fedcgs(labels: np.ndarray, num_clients: int, alpha: float, seed: int) -> list[list[int]]:
    rng = np.random.RandomState(seed)
    smallest = 0
    while smallest < 10:
        clients: list[list[int]] = [[] for _ in range(num_clients)]
        for c in range(100):
            of_class = np.where(labels == c)[0]
            rng.shuffle(of_class)
            shares = rng.dirichlet(np.repeat(alpha, num_clients))
            if len(of_class) == 0:
                continue
            shares = np.array(
                [s * (len(mine) < len(labels) / num_clients) for s, mine in zip(shares, clients, strict=True)]
            )
            cuts = (np.cumsum(shares / shares.sum()) * len(of_class)).astype(int)[:-1]
            clients = [mine + more.tolist() for mine, more in zip(clients, np.split(of_class, cuts), strict=True)]
        smallest = min(map(len, clients))
    return clients


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "alpha"), [(10, 10, 0.5), (10, 8, 0.1), (100, 10, 0.1), (3, 4, 0.3)]
)
def test_fedcgs_is_the_description_draw_for_draw(num_classes: int, num_clients: int, alpha: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), 60))
    for seed in range(5):
        parts = fedcgs_partition(labels, num_clients, alpha=alpha, seed=seed)
        assert [part.tolist() for part in parts] == literal_fedcgs(labels, num_clients, alpha, seed)
        assert min(map(len, parts)) >= 10


def test_fedcgs_refuses_what_it_cannot_do() -> None:
    with pytest.raises(DatasetError, match="5 clients need 50, the data set has 49"):
        fedcgs_partition(np.zeros(49, dtype=np.int64), 5, alpha=0.1, seed=0)
    with pytest.raises(DatasetError, match=r"1000 attempts at alpha 0\.01"):
        fedcgs_partition(np.zeros(50, dtype=np.int64), 5, alpha=0.01, seed=0)


@pytest.mark.parametrize("split", [fedcof_partition, fedcgs_partition])
def test_alpha_that_underflows_is_refused(split: object) -> None:
    with pytest.raises(DatasetError, match="too small"):
        split(np.repeat(np.arange(2), 40), 4, alpha=1e-6, seed=0)  # type: ignore[operator]
