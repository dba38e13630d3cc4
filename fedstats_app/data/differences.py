"""Sums over several sets of samples: of how few samples, or persons, a combination of them can tell.

A combination of sums weighs all samples alike that are in the same of the sets. So it is one of the sums over the
groups of samples that are in the same sets, and if every group is large, no combination is about few. Rows of several
means per class are sets of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ReleasedSet:
    """Samples behind a release.

    Attributes
    ----------
    keys : ndarray
        (n,) S16, different in one release and the same for the same sample of the same class in all.
    persons : ndarray
        (n,) S16, the same for all samples of a person; the keys if persons are not named.
    labels, rows : ndarray
        (n,) int64, the class by its position in ``class_names``, and the row of the statistics that it is summed in.
    class_names : tuple of str
        Of the labels.
    squares : bool
        True if there is a sum of products of features too: a Gram matrix, or a factor of all its directions.
    sets : ndarray or None
        (n, 2, C) bool, of samples with several labels or numbers (:func:`sets_of_targets`).
    """

    keys: NDArray[np.bytes_]
    persons: NDArray[np.bytes_]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    class_names: tuple[str, ...]
    squares: bool
    sets: NDArray[np.bool_] | None = None


def sets_of_targets(targets: NDArray[np.float64], *, labels: bool) -> NDArray[np.bool_]:
    """Return the samples of which sums by target tell: (n, 2, C), those that are known and, of labels, positive.

    Of numbers the second are those that differ from what more than half have: that times the sum of all features,
    subtracted from the sum of products, leaves a sum over them alone.
    """
    known = ~np.isnan(targets)
    if labels:
        return np.stack([known, targets > 0], axis=1)
    usual = [np.median(values[has]) if has.any() else 0.0 for values, has in zip(targets.T, known.T, strict=True)]
    different = known & (targets != np.array(usual))
    number = different.sum(axis=0)
    return np.stack([known, np.where((number > 0) & (2 * number < known.sum(axis=0)), different, known)], axis=1)


def withheld_targets(
    sets: NDArray[np.bool_],
    floor: int,
    persons: NDArray[np.int64] | None = None,
    others: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Return the targets to withhold, so that no two sums differ by fewer samples than the floor.

    Of any two of the sets A and B, all samples and none among them, those in A and not in B are none or at least the
    floor: where one set lies in the other, their sums can be subtracted. Of two targets that break this, the one with
    fewer positive samples is withheld.

    Parameters
    ----------
    sets : ndarray
        (n, 2, C) bool, of :func:`sets_of_targets`.
    floor : int
        The fewest samples, or persons.
    persons : ndarray, optional
        (n,) int64, whose each sample is.
    others : ndarray, optional
        (n, e) bool, further sets of which sums leave, or have left; by default that of all samples.
    """
    number, _, num_targets = sets.shape
    fixed = np.concatenate([np.zeros((number, 1)), np.ones((number, 1)) if others is None else others], axis=1)
    whole = np.concatenate([fixed, sets[:, 0], sets[:, 1]], axis=1).astype(np.float64)
    apart = whole.T @ (1.0 - whole)
    if persons is not None:
        for place, members in enumerate(whole.T > 0):
            left, whose = np.nonzero(whole[members].T == 0)
            pairs = np.unique(np.stack([left, persons[members][whose]]), axis=1)[0]
            apart[place] = np.bincount(pairs, minlength=whole.shape[1])
    few = (apart > 0) & (apart < floor)
    few[: fixed.shape[1], : fixed.shape[1]] = False  # of all samples :func:`small_groups` tells
    few |= few.T
    target = np.concatenate([np.full(fixed.shape[1], -1), np.arange(num_targets), np.arange(num_targets)])
    sizes, withheld = sets[:, 1].sum(axis=0), list[int]()
    while few.any():
        bad = np.unique(target[few.any(axis=1)])
        rarest = min((int(c) for c in bad if c >= 0), key=lambda c: (sizes[c], c))
        withheld.append(rarest)
        few[target == rarest] = False
        few[:, target == rarest] = False
    return sorted(withheld)


def withheld_in(earlier: Sequence[ReleasedSet], new: ReleasedSet, floor: int) -> list[int]:
    """Return the targets that a release withholds, its sums and those of earlier ones taken together."""
    releases = [*(found for found in earlier if found.sets is not None), new]
    keys, position = np.unique(np.concatenate([found.keys for found in releases]), return_inverse=True)
    columns, persons = [], np.empty(len(keys), dtype=keys.dtype)
    for found, here in zip(releases, _parts(position, releases), strict=True):
        assert found.sets is not None  # noqa: S101  # of targets
        sets = np.zeros((len(keys), *found.sets.shape[1:]), dtype=np.bool_)
        members = np.zeros((len(keys), 1), dtype=np.bool_)
        sets[here], members[here], persons[here] = found.sets, True, found.persons
        columns += [members, sets.reshape(len(keys), -1)]
    others = np.concatenate(columns[:-1], axis=1)
    return withheld_targets(sets, floor, np.unique(persons, return_inverse=True)[1], others)


def small_groups(earlier: Sequence[ReleasedSet], new: ReleasedSet, floor: int) -> dict[str, int]:
    """Return the classes in which a release makes a group of fewer persons than the floor, with the smallest size.

    Groups that earlier releases made are not the new one's: a floor that was raised since does not forbid it.
    """
    places, names, persons = _places([*earlier, new])
    classes = np.unique(names, return_inverse=True)[1].reshape(-1, 1)
    size = _sizes_of_new_groups(places, classes, persons)
    found: dict[str, int] = {}
    for index in np.flatnonzero((size > 0) & (size < floor)).tolist():
        name = str(names[index])
        found[name] = min(found.get(name, floor), int(size[index]))
    return dict(sorted(found.items()))


def smallest_group_of_squares(earlier: Sequence[ReleasedSet], new: ReleasedSet) -> int | None:
    """Return the persons of the smallest group over all classes that a release with a sum of products makes, if any."""
    places, _, persons = _places([*(found for found in earlier if found.squares), new])
    classes = np.zeros((len(places), 1), dtype=np.int64)
    size = _sizes_of_new_groups((places >= 0).astype(np.int64) - 1, classes, persons)
    return int(size[size > 0].min()) if (size > 0).any() else None


def _places(sets: Sequence[ReleasedSet]) -> tuple[NDArray[np.int64], NDArray[np.str_], NDArray[np.bytes_]]:
    """Return the row of every sample in each of m sets, (u, m), -1 where it is in none, its class's name and person.

    The person is that of the last set that it is in: an owner may have named persons since.
    """
    keys, first, position = np.unique(
        np.concatenate([found.keys for found in sets]), return_index=True, return_inverse=True
    )
    names = np.concatenate([np.array(found.class_names, dtype=np.str_)[found.labels] for found in sets])[first]
    places = np.full((len(keys), len(sets)), -1, dtype=np.int64)
    persons = np.empty(len(keys), dtype=keys.dtype)
    for column, (found, here) in enumerate(zip(sets, _parts(position, sets), strict=True)):
        places[here, column], persons[here] = found.rows, found.persons
    return places, names, persons


def _parts(position: NDArray[np.int64], sets: Sequence[ReleasedSet]) -> list[NDArray[np.int64]]:
    """Split the positions of all sets' samples into those of each."""
    return np.split(position, np.cumsum([len(found.keys) for found in sets])[:-1])


def _sizes_of_new_groups(
    places: NDArray[np.int64], classes: NDArray[np.int64], persons: NDArray[np.bytes_]
) -> NDArray[np.int64]:
    """Return the persons of each sample's group, (u,), 0 where the sets before the last one made the same group."""
    _, group = np.unique(np.concatenate([classes, places[:, :-1]], axis=1), axis=0, return_inverse=True)
    before = np.bincount(group := group.reshape(-1))[group]
    before[(places[:, :-1] < 0).all(axis=1)] = 0  # in no earlier set
    _, group = np.unique(np.concatenate([classes, places], axis=1), axis=0, return_inverse=True)
    whose = np.unique(persons, return_inverse=True)[1]
    pairs = np.unique(np.stack([group := group.reshape(-1), whose], axis=1), axis=0)
    size: NDArray[np.int64] = np.where(np.bincount(group)[group] == before, 0, np.bincount(pairs[:, 0])[group])
    return size
