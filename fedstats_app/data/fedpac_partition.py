"""The split for personalised models of FedPAC (Xu et al. 2023), which FedCGS's comparison follows."""

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.dataset import DatasetError

Indices = NDArray[np.int64]

NUM_SETS = 5


def dominant_classes(num_classes: int) -> list[list[int]]:
    """Return the sets of classes that clients mostly have: client i has set i mod 5.

    FedPAC's for 10 classes are {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8} and {8,9,0}. For C classes: five blocks of 3 C / 10
    neighbouring classes (at least one), which begin every C / 5 classes and go round the end; both are rounded, halves
    up. Together they hold every class.

    Parameters
    ----------
    num_classes : int
        C, at least 1.
    """
    length = max(1, (3 * num_classes + 5) // 10)
    starts = [(2 * num_classes * index + 5) // 10 for index in range(NUM_SETS)]
    return [[(start + offset) % num_classes for offset in range(length)] for start in starts]


def fedpac_partition(labels: Indices, num_clients: int, *, uniform_share: float, seed: int) -> list[Indices]:
    """Split samples into clients of one size: a share uniform over all classes, the rest from a few dominant ones.

    Each of the K clients gets m = floor(n / K) samples, and n mod K samples are left out. Of these, ``uniform_share`` m
    (rounded) are wanted in equal numbers from all classes, the others in equal numbers from the client's set of
    :func:`dominant_classes`; what does not divide goes to classes that are drawn. Wishes are served without
    replacement, one sample per client in turn and each client's in an order that is drawn, so that when a class is
    exhausted all that still want it go short alike. A wish for a dominant class is then served from the client's
    dominant class with most samples left; where none has any, and for the uniform part, from whichever class has most
    left (the lowest id among equals). Without exhaustion the shares are exact: with balanced classes that is up to
    about 79% of the data at a uniform share of 0.2, since in five cyclic sets some classes come twice.

    Parameters
    ----------
    labels : numpy.ndarray
        ``(n,)`` int64, non-negative.
    num_clients : int
        Number of clients K, at most n.
    uniform_share : float
        In ``[0, 1]``; 0.2 in the papers.
    seed : int
        Decides all draws.

    Returns
    -------
    list of numpy.ndarray
        K arrays ``(m,)`` of sample indices, disjoint.

    Raises
    ------
    DatasetError
        If uniform_share is out of range.
    """
    if not 0.0 <= uniform_share <= 1.0:
        raise DatasetError(f"the partitioner fedpac's uniform share must lie in [0, 1], got {uniform_share}")
    rng = np.random.default_rng(seed)
    num_classes, size = int(labels.max()) + 1, len(labels) // num_clients
    pools = [rng.permutation(np.flatnonzero(labels == class_id)) for class_id in range(num_classes)]
    left = np.array([len(pool) for pool in pools])  # (C,)
    sets = dominant_classes(num_classes)
    everything = list(range(num_classes))
    wishes = [
        _wishes(rng, everything, sets[client % NUM_SETS], size, uniform_share) for client in range(num_clients)
    ]  # K arrays (m, 2): class, whether it is wanted as a dominant one
    parts = np.empty((num_clients, size), dtype=np.int64)
    for turn in range(size):
        for client in range(num_clients):
            wanted, as_dominant = wishes[client][turn]
            class_id = _available(int(wanted), left, sets[client % NUM_SETS] if as_dominant else everything)
            left[class_id] -= 1
            parts[client, turn] = pools[class_id][left[class_id]]
    return list(parts)


def _wishes(
    rng: np.random.Generator, everything: list[int], dominant: list[int], size: int, uniform_share: float
) -> Indices:
    uniform = int(uniform_share * size + 0.5)
    wanted = [_evenly(rng, everything, uniform), _evenly(rng, dominant, size - uniform)]
    return rng.permutation(np.stack([np.concatenate(wanted), np.arange(size) >= uniform], axis=1))


def _evenly(rng: np.random.Generator, classes: list[int], size: int) -> Indices:
    """Return classes (size,), each as often as any other, give or take one."""
    each, more = divmod(size, len(classes))
    return np.concatenate([np.repeat(classes, each), rng.choice(classes, more, replace=False)]).astype(np.int64)


def _available(wanted: int, left: Indices, alternatives: list[int]) -> int:
    """Return the class to take a sample of: the one wanted, or else the alternative, or any, with most left."""
    if left[wanted] > 0:
        return wanted
    best = alternatives[int(left[alternatives].argmax())]
    return best if left[best] > 0 else int(left.argmax())
