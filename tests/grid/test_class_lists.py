"""Class lists of many nodes: by name, whatever their order; what may be one class under two names is refused."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.grid.class_lists import ClassList, align_class_lists
from fedstats_app.grid.federation_options import classes_that_fit


def names(*classes: str) -> ClassList:
    return ClassList(classes)


def numbered(classes: dict[int, str]) -> ClassList:
    return ClassList(tuple(classes.values()), tuple(classes))


def refused(lists: list[ClassList], known: tuple[str, ...] = ()) -> dict[int, str]:
    return align_class_lists(dict(enumerate(lists)), known)[1]


def test_other_orders_and_classes_of_some_are_fine() -> None:
    lists = {7: names("dog", "cat"), 8: names("cat", "dog"), 9: names("ant"), 10: names()}

    assert align_class_lists(lists) == (("ant", "cat", "dog"), {})


@pytest.mark.parametrize(
    ("odd", "difference"),
    [
        ("Cat", "'Cat' differs from 'cat' only in letter case"),
        ("CAT", "'CAT' differs from 'cat' only in letter case"),
        (" cat", r"' cat' differs from 'cat' only in spaces, Unicode form or what nobody sees"),
        ("cat  ", "only in spaces"),
        ("ｃat", r"'\\uff43at' differs from 'cat' only in spaces"),
        ("cat\u3164", r"'cat\\u3164' differs from 'cat' only in spaces"),
        ("ca\ufe0ft", "only in spaces"),
    ],
)
def test_the_odd_one_out_is_refused_with_both_lists(odd: str, difference: str) -> None:
    lists = [names("cat", "dog"), names(odd, "dog"), names("ant", "cat")]

    class_names, reasons = align_class_lists(dict(enumerate(lists)))

    assert class_names == ("ant", "cat", "dog") and list(reasons) == [1]
    with pytest.raises(AssertionError, match=difference):
        raise AssertionError(reasons[1])
    assert str(lists[1]) in reasons[1]
    assert "node 0 has ['cat', 'dog']" in reasons[1] or "node 2 has ['ant', 'cat']" in reasons[1]


def test_names_that_look_the_same_are_told_apart_by_their_characters() -> None:
    composed, decomposed = (unicodedata.normalize(form, "Łódź") for form in ("NFC", "NFD"))

    [(node, reason)] = refused([names(composed), names(composed), names(decomposed)]).items()

    assert node == 2 and ascii(decomposed) in reason and ascii(composed) in reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (names("dog"), names("DOG")),  # whose upper case sorts first
        (names("class 1"), names("class \u0661")),
        (names("dog", "bee"), names("DOG", "x")),
        (numbered({0: "dog"}), numbered({0: "wolf"})),
        (numbered({0: "0"}), names("dog")),
    ],
)
def test_in_a_tie_there_are_two_classes(one: ClassList, other: ClassList, caplog: pytest.LogCaptureFixture) -> None:
    """Else one hostile node could put out the only site that has a class."""
    class_names, reasons = align_class_lists({1: one, 2: other})

    assert reasons == {} and set(class_names) == {*one.names, *other.names}
    assert one.is_of_numbers or "may be the same, and count as different" in caplog.text


@pytest.mark.parametrize(
    ("listed", "look"),
    [
        (["dog", "d\u043eg"], r"'dog' and 'd\u043eg'"),  # a Cyrillic o
        (["COP", "\u0421\u041e\u0420"], r"'COP' and '\u0421\u041e\u0420'"),
        (["A", "a"], "'A' and 'a'"),
    ],
)
def test_classes_that_look_alike_are_named(listed: list[str], look: str, caplog: pytest.LogCaptureFixture) -> None:
    for lists in ([names(*listed, "кот")], [names(name, "кот") for name in listed]):
        caplog.clear()
        assert align_class_lists(dict(enumerate(lists))) == (tuple(sorted([*listed, "кот"])), {})
        assert caplog.messages == [f"classes that may be the same, and count as different: {look}"]


def test_the_majority_is_counted_by_class_not_by_list() -> None:
    """All lists differ; only one of them has the spelling that the others do not have."""
    lists = [names("Cat", "dog"), names("cat", "dog", "x"), names("cat", "dog", "y"), names("cat", "z")]

    assert refused(lists).keys() == {0}


def test_where_one_node_has_both_cases_they_are_two_classes() -> None:
    lists = [names("A", "a", "b"), names("a"), names("A")]

    assert align_class_lists(dict(enumerate(lists))) == (("A", "a", "b"), {})


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (names("cat", "cat "), "differ only in spaces"),
        (names("7", "\u0667"), "differ only in spaces"),
        (names("cat", "cat\u2800"), "differ only in spaces"),
        (names("\u3164"), "has no letter that can be seen"),
    ],
)
def test_a_node_with_names_that_nobody_can_tell_apart_is_refused(odd: ClassList, why: str) -> None:
    [(node, reason)] = refused([odd, names("cat")]).items()

    assert node == 0 and why in reason


@pytest.mark.parametrize(
    "lists",
    [
        [{0: "cat", 1: "dog"}, {0: "dog", 1: "cat"}],  # another order
        [{0: "ant", 1: "bee", 2: "cat"}, {0: "bee", 1: "cat", 2: "dog"}],  # sorted names of other sites
        [{0: "ant", 1: "bee", 2: "cat"}, {0: "bee", 1: "cat"}],
        [{3: "cat"}, {1: "ant", 3: "cat"}, {1: "ant"}],
        [{0: "0", 1: "1"}, {0: "0", 1: "1", 2: "2"}, {7: "7"}],
    ],
)
def test_numbered_classes_are_aligned_by_name_where_names_explain_the_numbers(lists: list[dict[int, str]]) -> None:
    class_names, reasons = align_class_lists({node: numbered(one) for node, one in enumerate(lists)})

    assert reasons == {} and set(class_names) == {name for one in lists for name in one.values()}


@pytest.mark.parametrize(
    ("usual", "odd", "reason"),
    [
        ({0: "cat", 1: "dog"}, {0: "cat", 1: "wolf"}, "class 1 is 'wolf', but elsewhere 'dog'"),
        ({0: "cat", 1: "dog"}, {0: "Katze", 1: "Hund"}, "class 0 is 'Katze', but elsewhere 'cat'"),
        ({0: "cat", 1: "dog"}, {0: "0", 1: "1"}, "class 0 is '0', but elsewhere 'cat'"),
        ({0: "cat", 1: "dog"}, {4: "4"}, "only numbers cannot be aligned with names"),
    ],
)
def test_one_number_with_two_names_is_refused(usual: dict[int, str], odd: dict[int, str], reason: str) -> None:
    reasons = refused([numbered(usual), numbered(odd), numbered(usual)])

    assert list(reasons) == [1] and reason in reasons[1]
    assert "[0: 'cat', 1: 'dog']" in reasons[1] and str(numbered(odd)) in reasons[1]


def test_bare_numbers_cannot_be_aligned_with_folders() -> None:
    folders, bare = names("cat", "dog"), numbered({0: "0", 1: "1"})

    assert refused([folders, folders, bare]).keys() == {2} and refused([bare, bare, folders]).keys() == {2}
    assert refused([bare, names("0", "1", "other")]) == {}  # folders that are named by the numbers


def test_classes_of_an_earlier_run_come_first() -> None:
    class_names, reasons = align_class_lists({0: names("Cat"), 1: names("Cat", "x"), 2: names("ant")}, ("cat", "dog"))

    assert class_names == ("ant",) and list(reasons) == [0, 1]
    assert "the statistics to extend has ['cat', 'dog']" in reasons[0]


def test_long_lists_are_cut_and_say_so() -> None:
    shown = str(names(*(f"class {number}" for number in range(1000))))

    assert len(shown) < 600 and shown.endswith("and 970 more]")


words = st.text("aAbé \u0301", min_size=1, max_size=3).filter(lambda word: word.strip() != "")


@given(st.lists(st.lists(words, max_size=4, unique=True), min_size=1, max_size=6), st.randoms())
def test_who_is_refused_does_not_depend_on_ids(lists: list[list[str]], draw: object) -> None:
    made = [ClassList(tuple(one)) for one in lists]
    order = list(range(len(made)))
    draw.shuffle(order)  # type: ignore[attr-defined]

    class_names, reasons = align_class_lists(dict(enumerate(made)))
    again, again_reasons = align_class_lists({100 + new: made[old] for new, old in enumerate(order)})

    assert class_names == again
    assert sorted(str(made[node]) for node in reasons) == sorted(str(made[order[node - 100]]) for node in again_reasons)
    assert set(class_names) == {name for node, one in enumerate(lists) if node not in reasons for name in one}


# One node's class list against many: it evicts nobody and cannot fill the memory.
TEN = {node: ClassList((f"class {node}", f"class {node % 10 + 1}")) for node in range(1, 11)}
ALONE = {node: ClassList((f"class {node}",)) for node in range(1, 11)}


@pytest.mark.parametrize(("honest", "gone"), [(TEN, [0]), (ALONE, [])], ids=["held by two", "held by one"])
def test_one_node_with_upper_case_names_evicts_nobody(honest: dict[int, ClassList], gone: list[int]) -> None:
    hostile = ClassList(tuple(f"CLASS {number}" for number in range(1, 11)))

    class_names, refused = align_class_lists({**honest, 0: hostile})

    assert list(refused) == gone and set(class_names) >= {name for one in honest.values() for name in one.names}


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
