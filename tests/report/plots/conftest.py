from collections.abc import Callable, Iterator
from itertools import combinations
from math import radians, sin

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fedstats_app.report.plots.style import plot_style

Check = Callable[[Figure], list[str]]
_TOLERANCE = 1.0  # pixels


def _drawn_texts(figure: Figure) -> list[Text]:
    """Texts with ink; matplotlib keeps the labels of ticks beyond the axes' limits but does not draw them."""
    hidden: set[Text] = set()
    for axes in figure.findobj(match=lambda artist: hasattr(artist, "get_xaxis")):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not axes.axison or not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    hidden.update((tick.label1, tick.label2))
    return [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def _ink(text: Text) -> Bbox:
    """Give what a text covers, without a label's line to its point and without a title's empty last lines."""
    box = Text.get_window_extent(text)
    lines = text.get_text().split("\n")
    full = len(text.get_text().rstrip("\n").split("\n"))
    return Bbox.from_extents(box.x0, box.y1 - box.height * full / len(lines), box.x1, box.y1)


def _overlap(one: Text, one_ink: Bbox, other: Text, other_ink: Bbox) -> bool:
    slant = one.get_rotation()
    if slant == other.get_rotation() and slant % 90:
        # Boxes of slanted texts overlap where their ink does not: take the distance between their lines.
        apart = abs(
            one.get_transform().transform(one.get_position()) - other.get_transform().transform(other.get_position())
        )
        return float(apart[0]) * sin(radians(slant)) < one.get_fontsize() * one.get_figure().dpi / 72
    common = Bbox.intersection(one_ink, other_ink)
    return common is not None and min(common.width, common.height) > _TOLERANCE


@pytest.fixture
def style() -> Iterator[None]:
    """Figures look as in the files."""
    with plot_style():
        yield


@pytest.fixture
def check_texts(style: None) -> Check:
    """Fail where a text of a figure lies over another or is cut off at the figure's edge; give the texts, unbroken."""

    def check(figure: Figure) -> list[str]:
        figure.draw_without_rendering()
        texts = [(text, _ink(text)) for text in _drawn_texts(figure)]
        inside = figure.bbox.padded(_TOLERANCE)
        for text, box in texts:
            cut = not (inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1))
            assert not cut, f"{text.get_text()!r} is cut off: {box} in {figure.bbox}"
        for one, other in combinations(texts, 2):
            assert not _overlap(*one, *other), f"{one[0].get_text()!r} lies over {other[0].get_text()!r}"
        return [text.get_text().strip().replace("\n", " ") for text, _ in texts]

    return check
