from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.report.plots.style import METHOD_COLOURS, shortened


def test_long_names_keep_both_ends_and_stay_apart() -> None:
    names = ["short", "exactly-18-letters", "a class with a long name 1", "a class with a long name 2"]
    cut = shortened(names)
    assert cut[:2] == names[:2]
    assert len(set(cut)) == 4
    assert all(len(name) <= 18 for name in cut)
    assert cut[2] == "a class w…g name 1"


def test_names_with_the_same_ends_are_cut_where_they_differ() -> None:
    names = ["a beetle of the north, adult", "a beetle of the south, adult", "a tree"]
    assert shortened(names) == ["…e north, adult", "…e south, adult", "a tree"]


@given(st.lists(st.text("ab…# 1", max_size=40), max_size=30, unique=True))
def test_different_names_stay_different_and_none_is_too_long(names: list[str]) -> None:
    cut = shortened(names)
    assert len(set(cut)) == len(names) and all(len(name) <= 18 for name in cut)


def test_text_in_the_colours_of_the_methods_can_be_read_on_white() -> None:
    for colour in METHOD_COLOURS:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.0  # WCAG 2 asks for 3 in large text, 4.5 in small
