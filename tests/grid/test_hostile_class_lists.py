"""One node's class list against many: it evicts nobody and cannot fill the memory; two alphabets are a warning."""

from __future__ import annotations

import pytest

from fedstats_app.grid.class_lists import ClassList, align_class_lists
from fedstats_app.grid.federation_options import classes_that_fit

TEN = {node: ClassList((f"class {node}", f"class {node % 10 + 1}")) for node in range(1, 11)}
ALONE = {node: ClassList((f"class {node}",)) for node in range(1, 11)}


@pytest.mark.parametrize(("honest", "gone"), [(TEN, [0]), (ALONE, [])], ids=["held by two", "held by one"])
def test_one_node_with_upper_case_names_evicts_nobody(honest: dict[int, ClassList], gone: list[int]) -> None:
    hostile = ClassList(tuple(f"CLASS {number}" for number in range(1, 11)))

    class_names, refused = align_class_lists({**honest, 0: hostile})

    assert list(refused) == gone
    assert set(class_names) >= {name for one in honest.values() for name in one.names}


def test_one_node_with_all_numbers_evicts_nobody() -> None:
    honest = {node: ClassList((f"class {node}",), (node,)) for node in range(1, 11)}
    hostile = ClassList(tuple(f"a{number}" for number in range(1, 11)), tuple(range(1, 11)))

    assert list(align_class_lists({**honest, 0: hostile})[1]) == [0]


def test_a_node_with_too_many_names_is_refused() -> None:
    hostile = ClassList(tuple(f"a{number}" for number in range(20_000)))

    class_names, refused = align_class_lists({**TEN, 0: hostile}, max_classes=100)

    assert len(class_names) == 10 and list(refused) == [0]
    assert refused[0].startswith("it names 20000 classes, at most 100 are allowed (max-classes)")
    assert len(refused[0]) < 1500


def test_many_nodes_with_classes_of_their_own_do_not_crowd_others_out() -> None:
    hostile = {100 + node: ClassList(tuple(f"a{node} {number}" for number in range(60))) for node in range(5)}

    class_names, refused = align_class_lists({**hostile, **TEN}, max_classes=100)

    assert len(refused) == 4 and refused.keys() <= hostile.keys()
    assert len(class_names) == 70
    assert all("there would be more than 100 classes (max-classes)" in reason for reason in refused.values())


def test_classes_of_an_earlier_run_count_too() -> None:
    known = tuple(f"old {number}" for number in range(95))

    assert align_class_lists({1: ClassList(("a", "b", "old 3"))}, known, max_classes=100)[1] == {}
    assert list(align_class_lists({1: ClassList(tuple("abcdef"))}, known, max_classes=100)[1]) == [1]


def test_what_classes_take_is_known_before_they_take_it() -> None:
    def kept(classes: int) -> int:
        scores = classes * 2 * 8 * 1281 + 8 * classes**2  # histograms of margins, a confusion matrix
        return 2 * 5 * scores + (3 * 5 + 2) * 8 * classes * 1280

    for memory in (2**30, 2**34):
        fit = classes_that_fit(1280, 5, memory)
        assert kept(fit) <= memory < kept(fit + 1)
    assert 1000 < classes_that_fit(1280, 5, 10**9) and classes_that_fit(1280, 5, 16 * 10**9) < 20_000
    assert classes_that_fit(1280, 5, 0) == 1
