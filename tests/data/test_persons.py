"""Persons: never in two parts, counted by floors, and none gives more than it may."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.data.clients import hidden_classes, split_holdout
from fedstats_app.data.contents import draw_holdout
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.description import doubts
from fedstats_app.data.loading import load_dataset
from fedstats_app.data.partition import PARTITIONERS, partition
from fedstats_app.data.persons import (
    BEYOND,
    HELD_OUT,
    WAITS,
    at_most_per_person,
    num_given,
    persons_per_class,
    place_samples,
    with_persons,
)
from tests.data.conftest import make_dataset, write_png


def persons_dataset(persons: list[int], labels: list[int], most: int = 50) -> Dataset:
    return with_persons(make_dataset(np.array(labels), who=np.array(persons)), "who", most)


PERSONS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=60)
FLOORS, SHARES, MOST = st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.5]), st.integers(1, 6)


def placed(pairs: list[tuple[int, int]], known: dict[bytes, int], held: dict[bytes, int], **how: float) -> np.ndarray:
    samples = [(b"%04d" % (7919 * n % 10_000), label, b"p%d" % person) for n, (person, label) in enumerate(pairs)]
    return place_samples(samples, known, held, **how)  # type: ignore[arg-type]


@given(PERSONS, PERSONS, FLOORS, SHARES, MOST)
def test_places_over_time(
    first: list[tuple[int, int]], more: list[tuple[int, int]], floor: int, share: float, most: int
) -> None:
    """A person is in one part, also when new samples come; what is new in a class and part is of enough persons."""
    how = {"floor": floor, "fraction": share, "most": most}
    before = placed(first, {}, {}, **how)
    known = {b"%04d" % (7919 * n % 10_000): int(place) for n, place in enumerate(before) if place >= 0}
    held = {b"p%d" % person: int(place) for (person, _), place in zip(first, before, strict=True) if place >= 0}
    after = placed(first + more, known, held, **how)

    used = before >= 0
    assert (after[: len(first)][used] == before[used]).all()
    parts, given_ = defaultdict[int, set[int]](set), Counter[int]()
    new = defaultdict[tuple[int, int], set[int]](set)
    for number, ((person, label), place) in enumerate(zip(first + more, after.tolist(), strict=True)):
        if place >= 0:
            parts[person].add(place)
            given_[person] += 1
            if number >= len(first) or before[number] < 0:
                new[label, place].add(person)
    assert all(len(found) == 1 for found in parts.values()) and max(given_.values(), default=0) <= most
    assert all(len(found) >= floor for found in new.values())
    if not share:
        assert HELD_OUT not in after


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), FLOORS, SHARES)
def test_without_persons_each_class_is_drawn_by_content(labels: list[int], floor: int, share: float) -> None:
    samples = [(b"%04d" % (7919 * n % 10_000), label, b"%04d" % (7919 * n % 10_000)) for n, label in enumerate(labels)]
    places = place_samples(samples, {}, {}, floor=floor, fraction=share, most=50)
    for label in set(labels):
        keys = [key for key, own, _ in samples if own == label]
        out = draw_holdout(keys, floor, share) if len(keys) >= floor else []
        expected = {key: (HELD_OUT if key in out else 0) if len(keys) >= floor else WAITS for key in keys}
        own_places = {key: place for (key, own, _), place in zip(samples, places.tolist(), strict=True) if own == label}
        assert own_places == expected


def test_more_than_a_person_may_give_is_left_out_and_waits_for_nobody() -> None:
    pairs = [(person, 0) for person in range(5) for _ in range(3)]
    assert Counter(placed(pairs, {}, {}, floor=5, fraction=0.0, most=2).tolist()) == {0: 10, BEYOND: 5}


@given(PERSONS, SHARES, st.integers(0, 99))
def test_holdouts_keep_persons_whole(pairs: list[tuple[int, int]], share: float, seed: int) -> None:
    persons, labels = map(list, zip(*pairs, strict=True))
    dataset, everything = persons_dataset(persons, labels), np.arange(len(pairs))
    kept, out = split_holdout(dataset, everything, share, seed, 0)
    assert sorted([*kept, *out]) == everything.tolist() and len(kept)
    whose = np.array(persons)
    assert not set(whose[kept]) & set(whose[out])
    assert len(set(whose[out])) == min(round(share * len(set(persons))), len(set(persons)) - 1)


@pytest.mark.parametrize("name", [*PARTITIONERS, "flwr:IidPartitioner()"])
def test_partitions_keep_persons_whole(name: str) -> None:
    draw = np.random.default_rng(0)
    persons = np.repeat(np.arange(60), draw.integers(1, 30, 60))
    columns = {"who": persons, "site": persons % 4}
    dataset = with_persons(make_dataset((persons + draw.integers(0, 2, len(persons))) % 6, **columns), "who", 50)
    column = {"natural-id": "who", "domain": "site"}.get(name, "")
    number = 0 if column else 4
    parts = partition(dataset, partitioner=name, num_clients=number, column=column, alpha=1.0)
    found = [set(persons[part]) for part in parts]
    assert sum(map(len, found)) == len(set.union(*found)) and len(parts) == (60 if name == "natural-id" else 4)
    if name not in ("pathological", "fedcof", "fedpac"):
        assert sum(map(len, parts)) == len(dataset)


def test_a_person_at_two_sites_is_an_error() -> None:
    dataset = with_persons(make_dataset(np.arange(4) % 2, who=np.array([0, 0, 1, 1]), site=np.arange(4)), "who", 9)
    with pytest.raises(DatasetError, match="2 of 2 persons have several values of 'site'"):
        partition(dataset, partitioner="natural-id", num_clients=0, column="site")


def test_floors_count_persons() -> None:
    dataset = persons_dataset([0, 0, 0, 1, 2], [0, 0, 1, 1, 1])
    assert persons_per_class(dataset).tolist() == [1, 3] and hidden_classes(dataset, 3).tolist() == [0]
    assert persons_per_class(make_dataset(np.array([0, 0, 1]))).tolist() == [2, 1]


def test_the_content_of_samples_says_which_of_a_person_are_kept(tmp_path: Path) -> None:
    for number in range(8):
        write_png(tmp_path / "a" / ("cat" if number % 2 else "dog") / "eve" / f"{number}.png", (number, 0, 0))
        write_png(tmp_path / "b" / ("cat" if number % 2 else "dog") / "eve" / f"{9 - number}.png", (number, 0, 0))
    kept = []
    for place in "ab":
        found = load_dataset(f"folder:{tmp_path / place}", "train", folder_levels="class")
        dataset = with_persons(found, "subfolder", 5)
        assert dataset.notes == ("max-per-person: 3 of 8 images are left out, of persons with more than 5",)
        kept.append({dataset.sample(int(i)).tobytes() for i in at_most_per_person(dataset, 5)})  # type: ignore[union-attr]
    assert kept[0] == kept[1] and len(kept[0]) == 5
    assert dataset.persons is not None and num_given(dataset.persons, 5) == 5
    assert with_persons(found, "subfolder", 8).notes == ()


def test_gaps_and_missing_columns_are_errors() -> None:
    dataset = make_dataset(np.array([0, 1, 1]), who=np.array(["a", "", None], dtype=object))
    with pytest.raises(DatasetError, match="2 of 3 images have no person in 'who'"):
        with_persons(dataset, "who", 5)
    with pytest.raises(DatasetError, match="person-column must name a column of persons, one of"):
        with_persons(dataset, "patient", 5)


@pytest.mark.parametrize(("name", "hints"), [("speaker", 1), ("Patient_ID", 1), ("user-id", 1), ("outpatients", 0)])
def test_one_hint_where_nobody_names_persons(name: str, hints: int) -> None:
    labels = np.arange(40) % 2
    dataset = make_dataset(labels, **{name: np.arange(40) % 8})
    assert sum("person-column" in line for line in doubts(dataset, None)) == hints
    for quiet in (doubts(with_persons(dataset, name, 5), None), doubts(dataset, None, name)):
        assert not any("person-column" in line for line in quiet)


def test_persons_in_both_splits_are_named() -> None:
    train, test = persons_dataset([0, 1, 2, 3], [0, 1, 0, 1]), persons_dataset([2, 3, 4], [0, 1, 0])
    assert "2 of 3 persons of the test split are in the training data too" in doubts(train, test)
