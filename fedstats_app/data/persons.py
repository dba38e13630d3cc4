"""Persons behind samples: whose each sample is, how many of them there are, and how many samples one gives."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.contents import draw_holdout, sample_content
from fedstats_app.data.dataset import Dataset, DatasetError

PERSON_BYTES = 16
# Places of a site's samples beside 0, for statistics: for evaluation; waiting for more; more than a person gives.
HELD_OUT, WAITS, BEYOND = 1, -1, -2


def with_persons(dataset: Dataset, column: str, most: int) -> Dataset:
    """Name the person of each sample by a column, "" for none; a note has what :func:`at_most_per_person` leaves out.

    Raises
    ------
    DatasetError
        If there is no such column, or a sample has no person in it.
    """
    if not column:
        return dataset
    if column not in dataset.columns:
        have = f"one of {sorted(dataset.columns)}" if dataset.columns else "there is none"
        raise DatasetError(f"{dataset.name}: person-column must name a column of persons, {have}, got {column!r}")
    names = [None if value is None else str(value) for value in dataset.columns[column].tolist()]
    if gaps := sum(not name for name in names):
        raise DatasetError(
            f"{dataset.name}: {gaps} of {len(names)} {dataset.kind}s have no person in {column!r} (person-column); "
            "give each the name of its person, or leave it out"
        )
    digests = [hashlib.blake2b(str(name).encode(), digest_size=PERSON_BYTES).digest() for name in names]
    persons = np.frombuffer(b"".join(digests), dtype=f"S{PERSON_BYTES}")
    beyond = len(persons) - num_given(persons, most)
    whole = f"{len(persons):,} {dataset.kind}s"
    note = f"max-per-person: {beyond:,} of {whole} are left out, of persons with more than {most}"
    return replace(dataset, persons=persons, notes=(*dataset.notes, *([note] if beyond else [])))


def num_given(persons: NDArray[np.bytes_], most: int) -> int:
    """Return how many samples are left with at most ``most`` of each person."""
    return int(np.minimum(np.unique(persons, return_counts=True)[1], most).sum())


def at_most_per_person(dataset: Dataset, most: int) -> NDArray[np.int64]:
    """Return the ascending indices of at most ``most`` samples of each person, chosen by content; of none all."""
    if dataset.persons is None:
        return np.arange(len(dataset))
    _, person, counts = np.unique(dataset.persons, return_inverse=True, return_counts=True)
    kept = counts[person] <= most
    groups = defaultdict[int, list[tuple[bytes, int]]](list)
    for index in np.flatnonzero(~kept).tolist():
        kind, data, _ = sample_content(dataset, index)
        name = dataset.class_names[dataset.labels[index]].encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(b"\0".join([kind.encode(), name, data])).digest()
        groups[int(person[index])].append((digest, index))
    kept[[index for group in groups.values() for _, index in sorted(group)[:most]]] = True
    return np.flatnonzero(kept)


def persons_per_class(dataset: Dataset) -> NDArray[np.int64]:
    """Count the persons of each class, (C,) int64; where none are named, the samples."""
    samples, labels = dataset.memberships
    if dataset.persons is not None:
        codes = np.unique(dataset.persons, return_inverse=True)[1][samples]
        labels = np.unique(np.stack([labels, codes]), axis=1)[0]
    return np.bincount(labels, minlength=len(dataset.class_names))


def place_samples(
    samples: Sequence[tuple[bytes, int, bytes]],
    known: Mapping[bytes, int],
    held: Mapping[bytes, int],
    *,
    floor: int,
    fraction: float,
    most: int,
) -> NDArray[np.int8]:
    """Place a site's samples: for statistics or evaluation, all of a person in one; or waiting for others.

    Samples keep their place, and persons theirs. New samples of a class, in each place, have none or as many persons
    as the floor.

    Parameters
    ----------
    samples : sequence
        Of n keys, classes and persons; if persons are not named, each sample is its own.
    known, held : mapping
        From keys, and from persons, to 0 or ``HELD_OUT``.
    floor : int
        At least 1.
    fraction : float
        Of persons to hold out, as of :func:`fedstats_app.data.contents.draw_holdout`, by class.
    most : int
        Samples of a person; known ones count first, then by key.

    Returns
    -------
    ndarray
        (n,) int8: 0, ``HELD_OUT``, ``WAITS`` or ``BEYOND``.
    """
    places = np.full(len(samples), BEYOND, dtype=np.int8)
    given, new = Counter[bytes](), list[int]()
    for index in sorted(range(len(samples)), key=lambda index: (samples[index][0] not in known, samples[index][0])):
        key, _, person = samples[index]
        given[person] += 1
        if given[person] <= most:
            places[index] = known.get(key, WAITS)
            new += [index] if key not in known else []
    found, of_person = defaultdict[int, set[bytes]](set), defaultdict[bytes, Counter[int]](Counter)
    for index in new:
        found[samples[index][1]].add(samples[index][2])
    classes = {label: persons for label, persons in found.items() if len(persons) >= floor}
    for index in new:
        _, label, person = samples[index]
        if label in classes:
            of_person[person][label] += 1
    # A person of several classes is drawn among those of the one with most of its samples.
    at_home = defaultdict[int, list[bytes]](list)
    for person, labels in of_person.items():
        if person not in held:
            at_home[min(labels, key=lambda label: (-labels[label], label))].append(person)
    drawn = {person for persons in at_home.values() for person in draw_holdout(persons, floor, fraction)}
    out = drawn | {person for person in of_person if held.get(person) == HELD_OUT}
    while few := {
        person
        for persons in classes.values()
        if persons & drawn and (len(persons & out) < floor or len(persons - out) < floor)
        for person in persons & drawn
    }:
        drawn, out = drawn - few, out - few
    parts = {label: (persons - out, persons & out) for label, persons in classes.items()}
    for index in new:
        _, label, person = samples[index]
        if label in parts and len(parts[label][person in out]) >= floor:
            places[index] = HELD_OUT if person in out else 0
    return places
