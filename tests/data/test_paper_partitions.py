"""The papers' splits."""

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedstats_app.data import DatasetError, paper_partitions
from fedstats_app.data.paper_partitions import dominant_classes, fedcgs_partition, fedcof_partition, fedpac_partition

CIFAR_100 = np.repeat(np.arange(100), 500)


def pairs(labels: np.ndarray, parts: list[np.ndarray]) -> int:
    """Count the (client, class) pairs: the rows M that FedCOF's server holds."""
    return sum(len(np.unique(labels[part])) for part in parts)


@pytest.mark.parametrize(("seed", "rows"), [(0, 2870), (1, 2887), (2, 2881), (3, 2915), (4, 2943)])
def test_fedcof_gives_the_published_number_of_means(seed: int, rows: int) -> None:
    parts = fedcof_partition(CIFAR_100, 100, alpha=0.1, seed=seed)
    assert pairs(CIFAR_100, parts) == rows
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(50_000))


class Later(np.random.RandomState):
    """The legacy generator as of NumPy 2.5: a class without probability uses up a random number too."""

    def multinomial(self, n: int, pvals: np.ndarray) -> np.ndarray:
        return one_of(pvals, lambda p: self.binomial(n, p))


def one_of(probabilities: np.ndarray, binomial: Callable[[float], int]) -> np.ndarray:
    """Draw a class: each in turn is asked with its share of what is left, and the last is not asked."""
    drawn, left = np.zeros(len(probabilities), dtype=int), 1.0
    for c, p in enumerate(probabilities[:-1]):
        if binomial(min(p / left, 1.0)):
            drawn[c] = 1
            return drawn
        left -= p
    drawn[-1] = 1
    return drawn


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
                # In NumPy 1.17 to 2.4 a class without probability is not asked.
                c = int(np.argmax(one_of(probabilities[k], lambda p: np.random.binomial(1, p) if p else 0)))
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
def test_fedcof_is_the_description(num_classes: int, num_clients: int, per_class: int, alpha: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), per_class))
    num_clients = min(num_clients, len(labels))
    parts = fedcof_partition(labels, num_clients, alpha=alpha, seed=seed)
    assert [part.tolist() for part in parts] == literal_fedcof(labels, num_clients, alpha, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "RandomState", Later)
        later = fedcof_partition(labels, num_clients, alpha=alpha, seed=seed)
    assert [part.tolist() for part in later] == [part.tolist() for part in parts]


def test_fedcof_goes_on_where_a_client_is_left_without_classes() -> None:
    """At this alpha most clients want one class only, and the later ones find it exhausted."""
    labels = np.repeat(np.arange(3), 20)
    with np.errstate(all="raise"):
        parts = fedcof_partition(labels, 12, alpha=0.02, seed=0)
    assert [len(part) for part in parts] == [5] * 12
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(60))


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


def test_fedcgs_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match="5 clients need 50, the data set has 49"):
        fedcgs_partition(np.zeros(49, dtype=np.int64), 5, alpha=0.1, seed=0)
    assert paper_partitions._FEDCGS_MAX_DRAWS == 1000
    monkeypatch.setattr(paper_partitions, "_FEDCGS_MAX_DRAWS", 20)
    with pytest.raises(DatasetError, match=r"20 attempts at alpha 0\.01"):
        fedcgs_partition(np.zeros(50, dtype=np.int64), 5, alpha=0.01, seed=0)


def counts(labels: np.ndarray, parts: list[np.ndarray], num_classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def test_the_sets_of_classes_are_fedpacs_and_hold_every_class() -> None:
    assert dominant_classes(10) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    ends = [(classes[0], classes[-1], len(classes)) for classes in dominant_classes(100)]
    assert ends == [(0, 29, 30), (20, 49, 30), (40, 69, 30), (60, 89, 30), (80, 9, 30)]
    for num_classes in range(1, 41):
        sets = dominant_classes(num_classes)
        assert len(sets) == 5 and set().union(*sets) == set(range(num_classes))
        assert all(len(set(classes)) == len(classes) for classes in sets)


def test_shares_are_exact_while_classes_last() -> None:
    """Of 300 samples 60 are uniform, 6 of each class, and 240 are dominant, 80 of each of three classes."""
    labels = np.repeat(np.arange(10), [190, 110] * 5)  # an even class is in two sets, an odd one in one
    parts = fedpac_partition(labels, 5, uniform_share=0.2, seed=3)
    for client, of_client in enumerate(counts(labels, parts, 10)):
        np.testing.assert_array_equal(of_client, 6 + 80 * np.isin(np.arange(10), dominant_classes(10)[client]))


def test_a_shortage_is_shared_by_all_who_want_the_class() -> None:
    labels = np.repeat(np.arange(10), 80)
    sizes = counts(labels, fedpac_partition(labels, 20, uniform_share=0.2, seed=1), 10)
    has_zero = [client for client in range(20) if 0 in dominant_classes(10)[client % 5]]
    assert sizes[has_zero, 0].min() >= 0.5 * sizes[has_zero, 0].max()  # in turn, first come would leave the last none
    in_set = np.stack([np.isin(np.arange(10), dominant_classes(10)[client % 5]) for client in range(20)])
    assert (sizes * in_set).sum() >= 0.75 * sizes.sum()


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda sizes: sizes[-1] > 0),
    st.integers(1, 9),
    st.floats(0.0, 1.0),
    st.integers(0, 2**32 - 1),
)
def test_laws_whatever_the_classes(sizes: list[int], num_clients: int, share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    num_clients = min(num_clients, len(labels))
    parts = fedpac_partition(labels, num_clients, uniform_share=share, seed=seed)
    assert [len(part) for part in parts] == [len(labels) // num_clients] * num_clients
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    again = fedpac_partition(labels, num_clients, uniform_share=share, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
