"""No combination of releases tells of few samples: the groups that they make are those of every combination."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.data.differences import (
    ReleasedSet,
    sets_of_targets,
    small_groups,
    smallest_group_of_squares,
    withheld_targets,
)

NAMES = ("ant", "bee")


def released(samples: dict[int, int], *, squares: bool = False, whose: list[int] | None = None) -> ReleasedSet:
    """Make the set of samples by number, each with its row; a sample's class is its number's last bit.

    Each is a person of its own, or that of its number.
    """
    numbers = sorted(samples)
    keys = np.array([f"{number:016d}".encode() for number in numbers], dtype="S16")
    labels, rows = (
        np.array(values, dtype=np.int64) for values in ([n % 2 for n in numbers], [samples[n] for n in numbers])
    )
    persons = keys if whose is None else np.array([f"person {whose[number]}".encode() for number in numbers], "S16")
    return ReleasedSet(keys, persons, labels, rows, NAMES, squares)


def sets_of(draws: list[list[int]], whose: list[int] | None = None) -> list[ReleasedSet]:
    """Make releases: for each a list over samples, -1 where one is not in it, else its row."""
    rows = [{number: row for number, row in enumerate(draw) if row >= 0} for draw in draws]
    return [released(found, whose=whose) for found in rows]


@given(st.lists(st.lists(st.integers(-1, 1), min_size=12, max_size=12), min_size=1, max_size=4))
def test_groups_are_those_of_a_count_by_hand(draws: list[list[int]]) -> None:
    *earlier, new = sets_of(draws)
    for floor in (1, 2, 3):
        expected: dict[str, int] = {}
        for parity, name in enumerate(NAMES):
            members = range(parity, 12, 2)
            place = {n: tuple(draw[n] for draw in draws) for n in members}
            for group in set(place.values()) - {(-1,) * len(draws)}:
                size = sum(found == group for found in place.values())
                before = sum(found[:-1] == group[:-1] for found in place.values())
                is_new = set(group[:-1]) <= {-1} or size < before
                if is_new and size < floor:
                    expected[name] = min(expected.get(name, floor), size)
        assert small_groups(earlier, new, floor) == expected


@given(
    st.lists(st.lists(st.booleans(), min_size=14, max_size=14), min_size=1, max_size=3),
    st.integers(2, 4),
    st.none() | st.lists(st.integers(0, 5), min_size=14, max_size=14),
)
def test_no_combination_of_allowed_releases_is_about_fewer_than_the_floor(
    draws: list[list[bool]], floor: int, whose: list[int] | None
) -> None:
    """Every combination with small whole weights, of those releases that one after another are allowed.

    By samples, or by persons with several.
    """
    persons = np.arange(14) if whose is None else np.array(whose)
    kept: list[list[int]] = []
    for draw in draws:
        new = [0 if there else -1 for there in draw]
        if not small_groups(sets_of(kept, whose), sets_of([new], whose)[0], floor):
            kept.append(new)
    for weights in itertools.product(range(-2, 3), repeat=len(kept)):
        total = sum((w * (np.array(draw) >= 0) for w, draw in zip(weights, kept, strict=True)), np.zeros(14, dtype=int))
        for parity in range(2):
            assert len(set(persons[parity::2][total[parity::2] != 0])) not in range(1, floor)


def test_a_group_of_many_samples_of_few_persons_is_small() -> None:
    new = released(dict.fromkeys(range(12), 0), whose=[0, 1, 0, 2, 0, 3, 4, 4, 4, 4, 4, 4])
    assert small_groups([], new, 3) == {"ant": 2} and smallest_group_of_squares([], new) == 5


def test_a_group_that_was_there_before_does_not_forbid_another_release() -> None:
    """The owner raised the floor since; and the same set again makes no group."""
    first = released(dict.fromkeys(range(0, 6, 2), 0))
    assert small_groups([first], first, 5) == {} and small_groups([], first, 5) == {"ant": 3}
    assert small_groups([first], released(dict.fromkeys(range(0, 4, 2), 0)), 5) == {"ant": 1}


@pytest.mark.parametrize(("new", "smallest"), [(range(8), None), (range(7), 1), (range(8, 20), 12), (range(20), 12)])
def test_sums_of_products_are_grouped_over_all_classes(new: range, smallest: int | None) -> None:
    """Of a release without them nothing can be subtracted."""
    earlier = [released(dict.fromkeys(range(8), 0), squares=True), released(dict.fromkeys(range(3), 0))]
    assert smallest_group_of_squares(earlier, released(dict.fromkeys(new, 0), squares=True)) == smallest


def test_numbers_that_few_samples_do_not_share_are_withheld() -> None:
    """Of numbers that are 0 but for one sample's, the sum of products is that sample's features."""
    same, spread = np.full(20, 3.0), np.arange(20.0)
    few, many = same.copy(), same.copy()
    few[:4], many[8:13] = (0.0, 1.0, 2.0, 3.5), 7.0
    targets = np.stack([few, many, spread, same], axis=1)
    assert withheld_targets(sets_of_targets(targets, labels=False), 5) == [0]


def told(*labels: list[int]) -> np.ndarray:
    """Return the sets of labels given as columns of 1, 0 or -1 for unknown."""
    values = np.array(labels, dtype=np.float64).T
    return sets_of_targets(np.where(values < 0, np.nan, values), labels=True)


@pytest.mark.parametrize(
    ("labels", "withheld"),
    [
        ([[1] * 5 + [0] * 5], []),
        ([[1] * 2 + [0] * 8], [0]),  # two positive samples
        ([[1] * 8 + [0] * 2], [0]),  # two negative ones
        ([[1] * 4 + [0] * 4 + [-1] * 2], [0]),  # two unknown ones
        ([[1] * 5 + [0] * 5, [1] * 4 + [0] * 6], [1]),  # one lies in the other: the sums differ by one sample
        ([[1] * 5 + [0] * 5, [1] * 5 + [0] * 5], []),  # the same samples
        ([[0] * 10, [1] * 5 + [0] * 5], []),  # none
    ],
)
def test_labels_whose_sums_would_tell_of_few_samples_are_withheld(labels: list[list[int]], withheld: list[int]) -> None:
    assert withheld_targets(told(*labels), 3) == withheld


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(2, 6))
def test_no_two_sums_that_leave_differ_by_few_samples(seed: int, n: int, floor: int) -> None:
    sets = told(*np.random.default_rng(seed).choice([-1, 0, 1], (5, n), p=[0.1, 0.4, 0.5]))
    kept = sets[:, :, np.setdiff1d(np.arange(5), withheld_targets(sets, floor))].reshape(n, -1)
    every = np.concatenate([np.zeros((n, 1), dtype=bool), np.ones((n, 1), dtype=bool), kept], axis=1)
    for first in every.T:
        for second in every.T:
            number = int((first & ~second).sum())
            assert number == 0 or number >= floor or number == n  # all samples alone are for the floor of classes
