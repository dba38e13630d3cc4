"""FedPAC's split: one size, a uniform share, dominant classes in cyclic sets."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fedstats_app.data import DatasetError, partition
from fedstats_app.data.fedpac_partition import dominant_classes, fedpac_partition
from tests.data.conftest import make_dataset


def counts(labels: np.ndarray, parts: list[np.ndarray], num_classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def test_the_sets_of_ten_classes_are_fedpacs() -> None:
    assert dominant_classes(10) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]


def test_the_sets_of_a_hundred_classes_are_ten_times_as_large() -> None:
    sets = dominant_classes(100)
    ends = [(classes[0], classes[-1]) for classes in sets]
    assert ends == [(0, 29), (20, 49), (40, 69), (60, 89), (80, 9)] and {len(classes) for classes in sets} == {30}


@pytest.mark.parametrize("num_classes", range(1, 41))
def test_together_the_sets_hold_every_class(num_classes: int) -> None:
    sets = dominant_classes(num_classes)
    assert len(sets) == 5
    assert set().union(*sets) == set(range(num_classes))
    assert all(len(set(classes)) == len(classes) for classes in sets)


def test_shares_are_exact_while_classes_last() -> None:
    """Of 300 samples 60 are uniform, 6 of each class, and 240 are dominant, 80 of each of three classes."""
    labels = np.repeat(np.arange(10), [190, 110] * 5)  # an even class is in two sets, an odd one in one
    parts = fedpac_partition(labels, 5, uniform_share=0.2, seed=3)
    for client, of_client in enumerate(counts(labels, parts, 10)):
        dominant = np.isin(np.arange(10), dominant_classes(10)[client])
        np.testing.assert_array_equal(of_client, 6 + 80 * dominant)


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


def test_the_share_is_passed_on_and_checked() -> None:
    dataset = make_dataset(np.repeat(np.arange(10), 60))

    def uniform(share: float) -> np.ndarray:
        parts = partition(dataset, partitioner="fedpac", num_clients=10, uniform_share=share)
        return counts(dataset.labels, parts, 10)

    assert (uniform(1.0) == 6).all()
    assert (uniform(0.0) == 0).any()
    with pytest.raises(DatasetError, match=r"must lie in \[0, 1\], got 1.5"):
        uniform(1.5)
