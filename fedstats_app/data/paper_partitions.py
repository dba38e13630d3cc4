"""The splits of the FedCOF, FedCGS and FedPAC papers, the first two draw for draw.

The code of these two draws from NumPy's legacy global generator. A private `numpy.random.RandomState` of the same seed
gives the same stream, so the published splits come out without touching the global one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.dataset import DatasetError

Indices = NDArray[np.int64]

FEDCGS_MIN_SAMPLES = 10
_FEDCGS_CLASS_IDS = 100
_FEDCGS_MAX_DRAWS = 1000

NUM_SETS = 5


def fedcof_partition(labels: Indices, num_clients: int, *, alpha: float, seed: int) -> list[Indices]:
    """Split samples as the FedCOF and FedNCM code does: clients of one size, each with its own mixture of classes.

    All clients' class probabilities are drawn first, p_k ~ Dirichlet(alpha); then each class's samples are shuffled,
    class by class; then each client in turn draws floor(n / K) labels one at a time from Multinomial(p_k) and takes a
    sample of that class off the pool. When a class is exhausted its column is set to zero and every p_k is normalised
    again. The remaining n mod K samples are dropped. With seed 0, alpha 0.1, 100 clients and CIFAR-100's 500 samples
    per class the clients hold 2,870 (client, class) pairs, the number M that the FedCOF paper reports.

    Where all of a client's probability lies on exhausted classes the published code would divide zero by zero; here
    such a client goes on with the classes that are left, in proportion to what is left of them.

    Draws are those of NumPy 1.17 to 2.4, as published. From 2.5 a class without probability uses up a random number.

    It takes n labels (non-negative), K clients, at most n, the concentration alpha above 0 and the seed of the legacy
    generator. Indices are in the order of drawing. A DatasetError says if alpha is so small that a draw underflows.
    """
    rng = np.random.RandomState(seed)
    num_classes = int(labels.max()) + 1
    probabilities = _dirichlet(rng, alpha, num_classes, num_clients)  # (K, C)
    pools = [np.flatnonzero(labels == class_id) for class_id in range(num_classes)]
    for pool in pools:
        rng.shuffle(pool)
    left = np.array([len(pool) for pool in pools])  # (C,)
    for empty in np.flatnonzero(left == 0):
        _exhaust(probabilities, left, int(empty))
    samples_per_client = len(labels) // num_clients
    parts = np.empty((num_clients, samples_per_client), dtype=np.int64)
    for client in range(num_clients):
        possible = _possible(probabilities[client])
        for position in range(samples_per_client):
            class_id = int(possible[rng.multinomial(1, probabilities[client, possible]).argmax()])
            left[class_id] -= 1
            parts[client, position] = pools[class_id][left[class_id]]
            if left[class_id] == 0:
                _exhaust(probabilities[client:], left, class_id)
                possible = _possible(probabilities[client])
    return list(parts)


def _possible(probabilities: NDArray[np.float64]) -> Indices:
    """Find the classes with a probability, and the last one, which takes what others leave without a draw."""
    found = probabilities > 0.0
    found[-1] = True
    return np.flatnonzero(found)


def _exhaust(probabilities: NDArray[np.float64], left: Indices, class_id: int) -> None:
    """Take a class without samples out of the clients' probabilities, in place."""
    if not left.any():
        return  # nothing will be drawn any more
    probabilities[:, class_id] = 0.0
    totals = probabilities.sum(axis=1, keepdims=True)
    stranded = totals[:, 0] == 0.0
    probabilities[stranded] = left
    totals[stranded] = left.sum()
    probabilities /= totals


def _dirichlet(rng: np.random.RandomState, alpha: float, length: int, count: int) -> NDArray[np.float64]:
    drawn = rng.dirichlet(np.full(length, alpha), count)  # (count, length)
    if not np.isfinite(drawn).all():
        raise DatasetError(
            f"alpha {alpha} is too small for the legacy generator: a Dirichlet draw underflows; take a larger one"
        )
    return drawn


def fedcgs_partition(labels: Indices, num_clients: int, *, alpha: float, seed: int) -> list[Indices]:
    """Split samples as the FedCGS code does: each class is divided over the clients by a Dirichlet draw.

    For each class in turn: shuffle its samples, draw the clients' shares from Dirichlet(alpha), set the shares of
    clients that have n / K samples or more to zero, normalise, and cut at the cumulated shares rounded down. If a
    client ends with fewer than 10 samples the whole split is drawn again, from where the generator stands. The
    published loop counts 100 class ids whatever the data set; ids without samples draw shares for nothing, and so they
    do here, since the next attempt depends on it.

    Parameters are those of :func:`fedcof_partition`; indices come class by class.

    Raises
    ------
    DatasetError
        If alpha is so small that a draw underflows, if there are fewer than 10 samples per client, or if 1,000 attempts
        leave a client with fewer.
    """
    if len(labels) < FEDCGS_MIN_SAMPLES * num_clients:
        raise DatasetError(
            f"the partitioner fedcgs gives every client at least {FEDCGS_MIN_SAMPLES} samples: {num_clients} clients "
            f"need {FEDCGS_MIN_SAMPLES * num_clients}, the data set has {len(labels)}"
        )
    rng = np.random.RandomState(seed)
    num_classes = int(labels.max()) + 1
    by_class = [np.flatnonzero(labels == class_id) for class_id in range(max(num_classes, _FEDCGS_CLASS_IDS))]
    for _ in range(_FEDCGS_MAX_DRAWS):
        parts = _draw_fedcgs(rng, by_class, num_clients, alpha)
        if min(map(len, parts)) >= FEDCGS_MIN_SAMPLES:
            return parts
    raise DatasetError(
        f"the partitioner fedcgs found no split with at least {FEDCGS_MIN_SAMPLES} samples for each of {num_clients} "
        f"clients in {_FEDCGS_MAX_DRAWS} attempts at alpha {alpha}; take fewer clients or a larger alpha"
    )


def _draw_fedcgs(rng: np.random.RandomState, by_class: list[Indices], num_clients: int, alpha: float) -> list[Indices]:
    full = sum(map(len, by_class)) / num_clients
    sizes = np.zeros(num_clients, dtype=np.int64)
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    for of_class in by_class:
        samples = of_class.copy()
        rng.shuffle(samples)
        shares = _dirichlet(rng, alpha, num_clients, 1)[0] * (sizes < full)
        if len(samples) == 0:
            continue
        if shares.sum() == 0.0:
            # All of the draw fell on clients that are full; the published code would divide by zero here.
            shares = (sizes < full).astype(np.float64)
        cuts = (np.cumsum(shares / shares.sum()) * len(samples)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(samples, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(of_client) for of_client in pieces]


def dominant_classes(num_classes: int) -> list[list[int]]:
    """Return the sets of classes that clients mostly have: client i has set i mod 5.

    FedPAC's for 10 classes are {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8} and {8,9,0}. For C classes: five blocks of 3 C / 10
    neighbouring classes (at least one), which begin every C / 5 classes and go round the end; both are rounded, halves
    up. Together they hold every class.
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

    The share is in [0, 1], or a DatasetError; 0.2 in the papers.
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
